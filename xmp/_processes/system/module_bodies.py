"""Which module's body runs at this moment: whose import reads or writes something.

What a library's function does on behalf of a module that calls it is that module's doing.
"""

from __future__ import annotations

import functools
import os
from types import FrameType

from xmp._os.imports import site_folders

from . import interpreter

__all__ = ["innermost", "is_of_a_library"]


def innermost(frame: FrameType | None) -> str:
    """The file of the module whose body runs innermost above this frame; empty if none does."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            file = frame.f_globals.get("__file__")
            if isinstance(file, str):  # others are texts that a module executes, and cells
                return file
        frame = frame.f_back
    return ""


def is_of_a_library(file: str) -> bool:
    """Whether this is no module of the user's program, but an installed one, Python's or xmp's."""
    return os.path.abspath(file).startswith(_libraries())


@functools.lru_cache(maxsize=1)
def _libraries() -> tuple[str, ...]:
    return (*site_folders(), os.path.dirname(os.__file__) + os.sep, interpreter.package_folder)
