"""Finds the library of a thread that ``threading`` does not know, if the kernel lets us see it.

A thread that waits in a system call has its stack pointer in ``/proc/self/task/<id>/syscall``
(proc(5)). The first return address on that stack that lies in a library, other than the C library,
is most often that of the library that has started the thread: it waits in its own loop.
"""

from __future__ import annotations

import bisect
import os
import re
import sys

from xmp._os import proc

__all__ = ["library_of", "python_module_of"]

_LOOK = 64 * 1024
_WORD = 8
_SYSTEM = re.compile(r"/(ld|lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+|python))[-.0-9]")


def python_module_of(task: str) -> str:
    """Return the module with whose function a thread of Python's began; "" for other threads.

    Threads of the module ``_thread`` are not in ``threading``'s list, but have frames. Their
    identifiers are pthread_t, which glibc keeps in the mapping of the thread's stack
    (nptl/allocatestack.c).
    """
    fields = proc.text(f"/proc/self/task/{task}/syscall").split()
    if len(fields) < 3:
        return ""
    pointer = int(fields[-2], 16)
    stack = next((s for s in _mappings() if s[0] <= pointer < s[1]), None)
    if stack is None:
        return ""
    for identifier, frame in sys._current_frames().items():
        if stack[0] <= identifier < stack[1]:
            while frame.f_back is not None:
                frame = frame.f_back
            return str(frame.f_globals.get("__name__", ""))
    return ""


def library_of(task: str) -> str:
    """Return the file name of the library that a thread of this process runs; "" if unknown."""
    fields = proc.text(f"/proc/self/task/{task}/syscall").split()
    if len(fields) < 3:
        return ""  # the thread is not in a system call ("running"), or the kernel does not tell
    mapped = _libraries()
    starts = [start for start, _, _ in mapped]
    for address in (int(fields[-1], 16), *_words(int(fields[-2], 16))):
        index = bisect.bisect_right(starts, address) - 1
        if index >= 0 and address < mapped[index][1] and not _is_of_the_system(mapped[index][2]):
            return os.path.basename(mapped[index][2])
    return ""


def _libraries() -> list[tuple[int, int, str]]:
    """Return start, end and file of each executable mapping of a file."""
    return [
        (start, end, file)
        for start, end, access, file in _mappings()
        if "x" in access and file.startswith("/")
    ]


def _mappings() -> list[tuple[int, int, str, str]]:
    """Return start, end, access and file of this process's mappings, in order of addresses."""
    found = []
    for line in proc.text("/proc/self/maps").splitlines():
        fields = [*line.split(maxsplit=5), ""]
        start, _, end = fields[0].partition("-")
        found.append((int(start, 16), int(end, 16), fields[1], fields[5]))
    return found


def _is_of_the_system(path: str) -> bool:
    return bool(_SYSTEM.search(path)) or ".so" not in os.path.basename(path)


def _words(pointer: int) -> list[int]:
    """Return the words on a stack, from its pointer on."""
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            data = memory.read(_LOOK)
    except (OSError, ValueError, OverflowError):
        return []
    whole = memoryview(data)[: len(data) // _WORD * _WORD]
    return whole.cast("Q").tolist()
