"""``hang_timeout``: when each replica was last seen to get on, in memory that all of them share.

A replica writes the time into its place when the user's program says so (``xmp.beat``, the
collectives) and when its main thread has executed Python. The supervisor looks only when the
time is over: nobody sends anything, nobody polls.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable

from xmp import _inside

from . import kernel

__all__ = ["Pulse"]

_LINE = 64  # bytes: no two replicas write into the same cache line
_SEMAPHORE = 64  # bytes: at least what any system's sem_t takes
_NANOSECONDS = 1_000_000_000
_BEATS_A_LIMIT = 8


class Pulse:
    """The times of all local replicas; made by the supervisor, before it makes them."""

    def __init__(self, count: int, descriptor: int = -1) -> None:
        """Over a file, for fresh interpreters; over nameless memory that forks inherit."""
        self._times = memoryview(mmap.mmap(descriptor, count * _LINE)).cast("q")

    @classmethod
    def file(cls, count: int) -> tuple[Pulse, int]:
        """Over a memory file, and its descriptor."""
        descriptor = kernel.memory_file("xmp-pulse")
        os.ftruncate(descriptor, count * _LINE)
        return cls(count, descriptor), descriptor

    def last(self, local_rank: int) -> int:
        """When a replica last got on, in monotonic nanoseconds; 0 before it has begun."""
        return self._times[local_rank * _LINE // 8]

    def beat(self, local_rank: int) -> None:
        """This replica gets on now."""
        self._times[local_rank * _LINE // 8] = time.monotonic_ns()

    def begin(self, local_rank: int, limit: int) -> None:
        """In the replica: from here on its progress can be seen. ``limit`` is in nanoseconds."""

        def beat() -> None:
            self.beat(local_rank)

        beat()
        _inside.on_beat(beat)
        period = min(1.0, limit / _NANOSECONDS / _BEATS_A_LIMIT)
        arguments = (beat, period)
        threading.Thread(target=_heart, args=arguments, name="xmp-heartbeat", daemon=True).start()


def _heart(beat: Callable[[], None], period: float) -> None:
    """Beat whenever the main thread has executed a step of Python since the last time.

    The interpreter is asked to call ``sem_post`` between two of the main thread's bytecodes, and
    we wait for that. A Python function in its place, or a signal, could swallow the user's Ctrl-C
    or interrupt a system call.
    """
    libc, python = ctypes.CDLL(None), ctypes.pythonapi
    semaphore = ctypes.create_string_buffer(_SEMAPHORE)
    python.Py_AddPendingCall.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
    # macOS has no nameless semaphores: there an interpreter that runs at all counts.
    able = libc.sem_init(semaphore, 0, 0) == 0
    while True:
        asked = able and python.Py_AddPendingCall(post, ctypes.addressof(semaphore)) == 0
        while asked and libc.sem_wait(semaphore):
            pass  # a signal came first
        beat()
        time.sleep(period)  # a heart beats by the clock
