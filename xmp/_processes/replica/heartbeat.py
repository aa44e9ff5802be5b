"""For ``hang_timeout``: signs of progress beside those that the program gives by itself.

A replica's record has the time of ``xmp.heartbeat`` and of xmp's collectives; with a limit, a
thread writes there, too, when the main thread has executed Python. The supervisor reads it when
the limit has passed and at its looks (``hang_watch``): no message is sent. In a launch over several
hosts it also reports progress to the others.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial

__all__ = ["HostProgress", "watch_python"]

_BEATS_PER_LIMIT = 8
REPORTS_PER_LIMIT = 8


def watch_python(ran: Callable[[], None], limit: int) -> None:
    """Have ``ran`` called while the main thread executes Python; ``limit`` is in nanoseconds."""
    run = partial(_beat_while_python_runs, ran, min(1.0, limit / 1e9 / _BEATS_PER_LIMIT))
    threading.Thread(target=run, name="xmp-heartbeat", daemon=True).start()


def _beat_while_python_runs(beat: Callable[[], None], period: float) -> None:
    """Beat whenever the main thread has executed a step of Python since the last time.

    The interpreter is asked to call ``sem_post`` between two of the main thread's bytecodes, and
    this thread waits for that. A Python function instead of it, or a signal, could swallow the
    user's Ctrl-C or interrupt a system call.
    """
    libc, python = ctypes.CDLL(None), ctypes.pythonapi
    semaphore = ctypes.create_string_buffer(64)  # no system's sem_t is larger
    python.Py_AddPendingCall.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
    # macOS has no nameless semaphores: there it counts that the interpreter runs at all.
    able = libc.sem_init(semaphore, 0, 0) == 0
    while True:
        asked = able and python.Py_AddPendingCall(post, ctypes.addressof(semaphore)) == 0
        while asked and libc.sem_wait(semaphore):
            pass  # a signal came first
        beat()
        time.sleep(period)


class HostProgress:
    """The reports to other hosts: when the next look is due, and the newest progress reported."""

    def __init__(self, limit: int, post: Callable[[], None]) -> None:
        """Report with ``post``; ``limit`` is the ``hang_timeout`` in nanoseconds."""
        self._period = max(1, limit // REPORTS_PER_LIMIT)
        self._post = post
        self._reported = 0
        """The newest progress that was reported, in monotonic nanoseconds."""
        self.due = 0

    def look(self, newest: int, now: int) -> None:
        """Report progress since the last report, if there is any."""
        self.due = now + self._period
        if newest > self._reported:
            self._reported = newest
            self._post()
