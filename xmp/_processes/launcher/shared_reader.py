"""Several threads wait for what one connection tells: one of them reads for all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from threading import TIMEOUT_MAX

__all__ = ["Ear"]


class Ear:
    """Hears for a launch.

    ``readable(seconds)`` says whether a message has come within that time, ``hear`` takes one in
    and says whether more can come. What is read last closes the connection: whoever began to wait
    on its number then would wait for ever, or for another's file.
    """

    def __init__(self, readable: Callable[[float | None], bool], hear: Callable[[], bool]) -> None:
        self._readable = readable
        self._hear = hear
        self._changed = threading.Condition()
        self._reading = False

    def until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Take in messages until ``done()``; False when ``timeout`` seconds are over."""
        if done():  # in a forked child, whose lock another thread may have held
            return True
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not done():
                left = None if end is None else max(0.0, end - time.monotonic())
                if self._reading:
                    heard = self._changed.wait(None if left is None else min(left, TIMEOUT_MAX))
                else:
                    heard = self._read_one(left)
                if not heard:
                    return done()
        return True

    def _read_one(self, timeout: float | None) -> bool:
        """Take one message in, if one comes in time; lets go of the lock while it waits."""
        self._reading, readable = True, False
        self._changed.release()
        try:
            readable = self._readable(timeout)
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
        if readable:
            self._hear()
        return readable

    def take_in(self) -> None:
        """Take in what has come, unless somebody is at it; called within other launches' locks."""
        if not self._changed.acquire(blocking=False):
            return
        try:
            while not self._reading and self._readable(0) and self._hear():
                pass
        finally:
            self._changed.release()

    def close(self) -> None:
        """Nothing comes any more; let go of who hears, who holds us."""
        self._readable, self._hear = _never, _nothing


def _never(_: float | None) -> bool:
    return False


def _nothing() -> bool:
    return False
