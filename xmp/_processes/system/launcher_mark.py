"""The launcher's mark (see ``_os.marks``) on this process, its forks and programs they execute."""

from __future__ import annotations

import ctypes
import os
import resource
import sys

from xmp._os.marks import LOCKS, PAGE, RUNTIME, VARIABLE, Mark

from . import linux

__all__ = ["VARIABLE", "leave", "leave_on_child", "leave_runtime", "variable"]

_PROT_NONE, _MAP_SHARED = 0, 1
_carried = ""


def leave(mark: str) -> None:
    """Carry this mark, and let every fork carry it.

    The mark is a mapping: that stays when a daemon closes all its descriptors or gives itself
    another title. Its page is never touched.
    """
    global _carried
    _carried = mark
    if not mark:
        return
    _limit(0, mark)
    _map(f"{PAGE}{mark}")


def leave_runtime(runtime: str) -> None:
    """Mark a supervisor and its forks with the runtime of their launch."""
    if _carried and runtime:
        _map(f"{RUNTIME}{runtime}")


def _map(name: str) -> None:
    mmap = ctypes.CDLL(None)["mmap"]
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    descriptor = linux.memory_file(name)
    mmap(None, 1, _PROT_NONE, _MAP_SHARED, descriptor, 0)  # if it fails, there is no mark
    os.close(descriptor)


def leave_on_child(pid: int, mark: str) -> None:
    """Mark a child that may never reach its first line: a fork in a hook, a stuck interpreter.

    Call it only while no other code can have reaped the child: its pid must not be another's.
    """
    _limit(pid, mark)


def _limit(pid: int, text: str) -> None:
    """Set the marked resource limit of a process (0: this one), as far as the kernel allows."""
    mark = Mark.parse(text)
    if sys.platform != "linux" or mark is None or mark.limit is None:
        return
    try:
        _, hard = resource.prlimit(pid, LOCKS)
        resource.prlimit(pid, LOCKS, (mark.limit, hard))
    except (OSError, ValueError):
        pass  # a sandbox, or a lower hard limit; or it has ended


def variable() -> list[tuple[str, str]]:
    """Return the variable for programs that replicas execute."""
    return [(VARIABLE, _carried)] if _carried else []
