"""Counts of a replica within one call of its function: made for the call, dropped with it.

The replicas of a gang run one call after the other. A count that lived longer would give the
replicas of the next call different keys, wherever some of them alone have used a helper in the last
one: they would get that call's values. A launch has one call, number 0.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

__all__ = ["CallState"]


class CallState:
    """The counts of one call of one replica."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.once_calls: Iterator[int] = itertools.count()
        """Numbers the calls of ``once_per_host``."""
        self.broken = ""
        """The reason why no collective may follow; empty: one may."""
        self.meetings: Counter[int] = Counter()
        """The number of collectives with a time limit, by group, of calls without a record."""
        self.made: Counter[str] = Counter()
        """The number of objects with a key that each line has made."""
