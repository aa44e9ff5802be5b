"""How long a launch waits for its hosts."""

from __future__ import annotations

import time
from typing import NamedTuple

from xmp._words.errors import ReplicaTimeout, StartError, XmpError
from xmp._words.types import Limits

__all__ = ["Limit", "limit_of"]

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

    def error(self, text: str) -> XmpError:
        """What is raised at its end."""
        return (ReplicaTimeout if self.name == "timeout" else StartError)(text)


def limit_of(limits: Limits | None, begun: float) -> Limit:
    """The limit for hosts of a launch that was called at ``begun``."""
    start, total = (limits.start, limits.total) if limits is not None else (None, None)
    seconds = _START if start is None else start / 1e9
    found = Limit("start_timeout", seconds, begun + seconds)
    if limits is None or total is None:
        return found
    first = limits.first / 1e9 or begun  # monotonic_ns is the same clock
    whole = Limit("timeout", total / 1e9, first + total / 1e9)
    return min(found, whole, key=lambda each: each.ends)
