"""Several threads wait for messages of one connection: one of them reads for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["SharedReader", "seconds_to"]


class SharedReader:
    """Reads from one connection for all threads.

    ``readable(seconds)`` returns whether a message has come within that time, ``read`` takes one in
    and returns whether more can come. ``read`` may close the connection, so it holds the lock: a
    thread that then polled its descriptor would wait for ever, or for another file.
    """

    def __init__(self, readable: Callable[[float | None], bool], read: Callable[[], bool]) -> None:
        self._readable = readable
        self._read = read
        self._changed = threading.Condition()
        self._reading = False

    def until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Take in messages until ``done()``; False after ``timeout`` seconds."""
        if done():  # in a forked child, whose lock another thread may have held
            return True
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not done():
                left = seconds_to(end)
                if not (self._changed.wait(left) if self._reading else self._read_one(left)):
                    return done()
        return True

    def _read_one(self, timeout: float | None) -> bool:
        """Take in one message, if one comes in time; releases the lock while it waits."""
        self._reading, readable = True, False
        self._changed.release()
        try:
            readable = self._readable(timeout)
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
        if readable:
            self._read()
        return readable

    def take_in(self) -> None:
        """Take in what has come, unless another thread does; other launches' locks may be held."""
        if self._changed.acquire(blocking=False):
            try:
                while not self._reading and self._readable(0) and self._read():
                    pass
            finally:
                self._changed.release()

    def close(self) -> None:
        """Nothing more comes; drop the references to the owner, which refers to this reader."""
        self._readable, self._read = lambda _: False, lambda: False


def seconds_to(end: float | None) -> float | None:
    """Seconds until ``end``, at most what a lock can wait for; None without an end."""
    return None if end is None else min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX)
