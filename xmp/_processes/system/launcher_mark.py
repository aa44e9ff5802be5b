"""The mark of the launcher (see ``_marks``), on this process, its forks and what those exec."""

from __future__ import annotations

import ctypes
import os

from xmp._marks import PAGE, VARIABLE

from . import linux

__all__ = ["VARIABLE", "leave", "variable"]

_PROT_NONE, _MAP_SHARED = 0, 1
_carried = ""


def leave(mark: str) -> None:
    """Carry this mark, and let every fork carry it.

    A mapping stays where a daemon closes all its descriptors or gives itself another title. The
    page is never touched.
    """
    global _carried
    _carried = mark
    if not mark:
        return
    mmap = ctypes.CDLL(None)["mmap"]
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    descriptor = linux.memory_file(f"{PAGE}{mark}")
    mmap(None, 1, _PROT_NONE, _MAP_SHARED, descriptor, 0)  # where it fails there is no mark
    os.close(descriptor)


def variable() -> list[tuple[str, str]]:
    """The variable for the programs that replicas exec."""
    return [(VARIABLE, _carried)] if _carried else []
