"""The program of this command line, and how to run it once more, as ``__main__``."""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import sys
import types
from typing import NamedTuple

from .script import belongs_to_an_app

__all__ = ["Program", "program_of_this_process", "run_as_main"]


class Program(NamedTuple):
    """What Python runs: ``kind`` is "file", "module" (python -m) or "folder" (or a zip file)."""

    kind: str
    value: str


def program_of_this_process() -> Program | None:
    """What ``__main__`` was started from; None for cells, ``-c``, standard input and the like."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(sys, "frozen", False) or belongs_to_an_app():
        return None
    spec = getattr(main, "__spec__", None)
    if spec is None:
        path = os.path.abspath(path)
        # /dev/stdin is a file where the shell has redirected it, and another one in each process.
        is_kept = os.path.isfile(path) and not path.startswith(("/dev/", "/proc/"))
        return Program("file", path) if is_kept else None
    if spec.name == "__main__":
        return Program("folder", sys.argv[0])
    return Program("module", spec.name)


def run_as_main(program: Program) -> None:
    """Run the program here, with this process's ``sys.argv`` and ``sys.path``.

    Raises what it raises, SystemExit as well.
    """
    if program.kind == "file":
        _run_file(program.value)
    elif program.kind == "module":
        runpy.run_module(program.value, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program.value, run_name="__main__")


def _run_file(path: str) -> None:
    """Not by runpy: it changes ``sys.argv[0]``, and drops ``__main__`` while threads still run."""
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__["__builtins__"] = __builtins__
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)
