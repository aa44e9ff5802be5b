"""The interpreter for processes of xmp, and how a fresh one finds this package."""

from __future__ import annotations

import os
from multiprocessing import spawn, util
from pathlib import Path

__all__ = ["executable", "fresh_interpreter", "package_folder", "package_root"]

package_root = str(Path(__file__).resolve().parents[3])
package_folder = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep
"""Where this package lies, as tracebacks name it: frames in files below it are not the user's."""

_WARNINGS = os.environ.get("PYTHONWARNINGS", "").split(",")
"""The part of ``sys.warnoptions`` that a fresh interpreter reads from its own environment, where
``env=`` may have changed it; as an option it would go before that."""


def executable() -> str:
    """The interpreter for processes of xmp: multiprocessing's."""
    return os.fsdecode(spawn.get_executable())


def fresh_interpreter(module: str, function: str, *numbers: int) -> list[str]:
    """The command of a fresh interpreter, with this one's flags, that calls a function of xmp.

    ``numbers`` are the function's arguments: mostly descriptors.
    """
    # -c puts the working folder first in sys.path, where a file of the user's may shadow a library.
    program = (
        "import sys; sys.path[:] = [p for p in sys.path if p] + [sys.argv[1]]; "
        f"from {module} import {function}; {function}(*map(int, sys.argv[2:]))"
    )
    flags = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    for option in _WARNINGS:
        if f"-W{option}" in flags:
            flags.remove(f"-W{option}")
    return [executable(), *flags, "-c", program, package_root, *map(str, numbers)]
