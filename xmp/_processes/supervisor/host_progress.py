"""For ``hang_timeout`` over several hosts: reports to the others that replicas make progress."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["REPORTS_PER_LIMIT", "HostProgress"]

REPORTS_PER_LIMIT = 8


class HostProgress:
    """The time of the next look at the heartbeats, and the newest progress reported."""

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
