"""Several threads wait for messages of one connection: one of them reads for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from xmp._os import signals

from .wakeups import Wakeups

__all__ = ["SharedReader", "seconds_to"]


class SharedReader:
    """Reads from one connection for all threads.

    ``readable(seconds)`` returns whether a message has come within that time, or False early when
    a signal came; ``read`` takes one in, if it is still there, and returns whether more can come.
    One thread at a time calls them: ``read`` may close the connection, and a thread that then
    polled its descriptor would wait for ever, or for another file.

    The thread that reads may come here again, from a handler of a message, a ``__del__`` or, when
    it has let go for that, a signal handler. So after each wait it looks again.
    """

    def __init__(self, readable: Callable[[float | None], bool], read: Callable[[], bool]) -> None:
        self._readable = readable
        self._read = read
        self._wakeups = Wakeups()
        self._reader = 0
        """The thread that reads, and how many of its calls do."""
        self._depth = 0

    def until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Take in messages until ``done()``; False after ``timeout`` seconds.

        In the main thread signal handlers run here, between two waits.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with signals.deferred():
            while not done():
                left = seconds_to(end)
                if self._begin():
                    try:
                        came = self._read_one(left)
                    finally:
                        self._end()
                    signals.deliver()
                else:
                    came = False
                    self._wakeups.wait(lambda: not self._reader or done(), left)
                if not came and end is not None and time.monotonic() >= end:
                    return done()
        return True

    def _begin(self) -> bool:
        """Become the one that reads; False if another thread is."""
        own = threading.get_ident()
        with self._wakeups.lock:
            if self._reader not in (0, own):
                return False
            self._reader, self._depth = own, self._depth + 1
            return True

    def _end(self) -> None:
        with self._wakeups.lock:
            self._depth -= 1
            if self._depth == 0:
                self._reader = 0
        self._wakeups.wake_all()

    def _read_one(self, timeout: float | None) -> bool:
        """Take in one message, if one comes in time."""
        came = self._readable(timeout)
        if came:  # a __del__ may have read it during the wait, or the last one
            with signals.blocked():
                self._read()
        return came

    def take_in(self) -> None:
        """Take in what has come, unless a thread reads: this one, too, would get it later."""
        with signals.blocked():
            if not self._reader and self._begin():
                try:
                    while self._readable(0) and self._read():
                        pass
                finally:
                    self._end()

    def close(self) -> None:
        """Nothing more comes; drop the references to the owner, which refers to this reader."""
        self._readable, self._read = lambda _: False, lambda: False


def seconds_to(end: float | None) -> float | None:
    """Return the seconds until ``end``, at most what a lock can wait for; None without an end."""
    return None if end is None else min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX)
