"""Threads that wait until another one has changed something, also while signals come."""

from __future__ import annotations

import threading
from collections.abc import Callable

from xmp._os import signals

__all__ = ["Wakeups"]


class Wakeups:
    """As ``threading.Condition``, which a signal handler that raises may leave without its lock.

    ``lock`` guards what changes: held for moments, it may be taken again by a handler or a
    ``__del__`` that runs in the thread that holds it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._sleepers: list[threading.Lock] = []

    def wait(self, needless: Callable[[], bool], seconds: float | None) -> None:
        """Wait for ``wake_all``; returns early, or at once if ``needless()``, for a new look."""
        sleeper = threading.Lock()
        sleeper.acquire()
        with self.lock:
            if needless():
                return
            self._sleepers.append(sleeper)
        seconds = signals.step(seconds)
        signals.interruptible(sleeper.acquire, True, -1 if seconds is None else seconds)
        with self.lock:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
        signals.deliver()

    def wake_all(self) -> None:
        """Let all that wait have a look."""
        with self.lock:
            sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            sleeper.release()
