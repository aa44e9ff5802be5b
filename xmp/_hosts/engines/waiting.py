"""How long a launch waits for its hosts, and how long they stay reserved after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from xmp._words.errors import ReplicaTimeout, StartError, XmpError
from xmp._words.types import Limits

__all__ = ["Later", "Limit", "limit_of"]

_START = 300.0
"""Seconds for all hosts, without ``start_timeout``: a cluster may add some."""


class Limit(NamedTuple):
    """The option that ends the wait first, and when."""

    name: str
    seconds: float
    ends: float
    """As ``time.monotonic()``."""

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.name})"

    @property
    def left(self) -> float:
        """Seconds, 0 or more."""
        return max(0.0, self.ends - time.monotonic())

    def error(self, text: str, code: str) -> XmpError:
        """Return what is raised at its end; ``code`` is the engine's."""
        if self.name == "timeout":
            return ReplicaTimeout(text, code="XMP-T01")
        return StartError(text, code=code)


def limit_of(limits: Limits | None, begun: float) -> Limit:
    """Return the limit for hosts of a launch that was called at ``begun``."""
    start, total = (limits.start, limits.total) if limits is not None else (None, None)
    seconds = _START if start is None else start / 1e9
    found = Limit("start_timeout", seconds, begun + seconds)
    if limits is None or total is None:
        return found
    first = limits.first / 1e9 or begun  # monotonic_ns is the same clock
    whole = Limit("timeout", total / 1e9, first + total / 1e9)
    return min(found, whole, key=lambda each: each.ends)


class Later:
    """Calls ``over`` so many seconds after ``start``, unless ``stop`` comes first.

    After ``stop`` it is not called any more: it has returned, or never begins.
    """

    def __init__(self, over: Callable[[], object], seconds: float) -> None:
        self._over, self._seconds = over, seconds
        self._lock = threading.RLock()  # ``over`` may itself call ``stop``
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Count from now on."""
        with self._lock:
            self.stop()
            self._timer = threading.Timer(self._seconds, self._call)
            self._timer.name, self._timer.daemon = "xmp-later", True
            self._timer.start()

    def stop(self) -> None:
        """Call nothing: another launch begins, or there is nothing to give back."""
        with self._lock:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()

    def _call(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._over()
