"""Finds the module whose body is running now: the one whose import reads or writes something.

If the module calls a library's function, the effect counts as the module's.
"""

from __future__ import annotations

import functools
import os
from types import FrameType

from xmp._os.imports import site_folders

from . import interpreter

__all__ = ["innermost", "is_of_a_library"]


def innermost(frame: FrameType | None) -> str:
    """Return the file of the innermost module whose body runs above this frame; "" if none does."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            file = frame.f_globals.get("__file__")
            if isinstance(file, str):  # otherwise a text that a module executes, or a cell
                return file
        frame = frame.f_back
    return ""


def is_of_a_library(file: str) -> bool:
    """Return whether the file is an installed module, Python's or xmp's: not the user's program."""
    return os.path.abspath(file).startswith(_libraries())


@functools.lru_cache(maxsize=1)
def _libraries() -> tuple[str, ...]:
    return (*site_folders(), os.path.dirname(os.__file__) + os.sep, interpreter.package_folder)
