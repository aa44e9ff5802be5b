"""Finds the program of this command line, which ``run_script`` runs once more in replicas."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from .script import belongs_to_an_app
from .sources import is_kept

__all__ = ["Program", "program_of_this_process"]


class Program(NamedTuple):
    """What Python runs; ``kind`` is that of a ``ScriptRun``."""

    kind: str
    target: str
    source: str
    """The path of its file."""
    package: str = ""
    """The package of which it is part, under ``-m``."""


def program_of_this_process() -> Program | None:
    """Return what ``__main__`` was started from; None for cells, ``-c``, standard input etc."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(sys, "frozen", False) or belongs_to_an_app():
        return None
    spec = getattr(main, "__spec__", None)
    if spec is None:
        path = os.path.abspath(path)
        return Program("path", _as_typed(path), path) if is_kept(path) else None
    if spec.name == "__main__":
        return Program("folder", sys.argv[0], path)
    return Program("module", spec.name, path, spec.parent or "")


def _as_typed(path: str) -> str:
    """Return the script's ``sys.argv[0]``; its path if the program changed that or its folder."""
    typed = sys.argv[0] if sys.argv else ""
    return typed if typed and os.path.abspath(typed) == path else path
