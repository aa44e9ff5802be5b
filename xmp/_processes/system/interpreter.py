"""The interpreter for processes of xmp, and how a fresh one finds this package."""

from __future__ import annotations

import os
import sys
from multiprocessing import spawn, util
from pathlib import Path
from typing import Any

__all__ = [
    "TRACING", "executable", "fresh_interpreter", "package_folder", "package_root", "traced_frames",
]  # fmt: skip

TRACING = "PYTHONTRACEMALLOC"
"""The variable of tracemalloc. It is not set in a fresh interpreter: import torch takes 8 s with
it, and none of these allocations are the user's. Replicas begin tracing when the call is loaded."""

package_root = str(Path(__file__).resolve().parents[3])
package_folder = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep
"""The folder of this package as tracebacks name it: frames of its files are not the user's."""

_WARNINGS = os.environ.get("PYTHONWARNINGS", "").split(",")
"""The part of ``sys.warnoptions`` that a fresh interpreter reads from its own environment, which
``env=`` may have changed; passed as options, these would take precedence over that."""


# -c puts the working folder first in sys.path, where a file of the user's may shadow a library.
# An xmp in the script's folder must not meet another, installed one: their messages differ.
_OWN_XMP = """import sys
sys.path[:] = [p for p in sys.path if p]
if sys.argv[1] not in sys.path:
    from importlib import util
    spec = util.spec_from_file_location("xmp", sys.argv[1] + "/xmp/__init__.py")
    sys.modules["xmp"] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["xmp"])
    sys.path.append(sys.argv[1])
"""


def executable() -> str:
    """Return the interpreter for processes of xmp, which is multiprocessing's."""
    return os.fsdecode(spawn.get_executable())


def fresh_interpreter(module: str, function: str, *numbers: int) -> list[str]:
    """Return the command of a fresh interpreter, with this one's flags, that calls a function.

    ``numbers`` are the function's arguments: mostly descriptors.
    """
    program = f"{_OWN_XMP}from {module} import {function}; {function}(*map(int, sys.argv[2:]))"
    flags = _without_tracing(util._args_from_interpreter_flags())  # type: ignore[attr-defined]
    for option in _WARNINGS:
        if f"-W{option}" in flags:
            flags.remove(f"-W{option}")
    return [executable(), *flags, "-c", program, package_root, *map(str, numbers)]


def _without_tracing(flags: list[str]) -> list[str]:
    """Return the flags without ``-X tracemalloc=25``."""
    traced = {i for i, flag in enumerate(flags) if flag.partition("=")[0] == "tracemalloc"}
    return [flag for i, flag in enumerate(flags) if i not in traced and i + 1 not in traced]


def traced_frames() -> int:
    """Return how many frames of an allocation tracemalloc is set to record; 0: it is off."""
    given: Any = sys._xoptions.get("tracemalloc")
    if given is None and not sys.flags.ignore_environment:
        given = os.environ.get(TRACING, "0")
    return 1 if given is True else int(given) if str(given).isdecimal() else 0
