"""A fork server's forks that have not reached their first line: see ``system/birth``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from xmp._processes.system import linux, processes
from xmp._processes.system.birth import Birth, is_over

__all__ = ["Births"]

_SECONDS = 30.0
"""A fork that takes longer hangs in a library's at-fork hook, and its launch with it."""


class Births:
    """What has been forked and looks not yet after itself."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}
        """The descriptor to keep open, by pid."""
        self._ends: dict[int, float] = {}

    def fork(self, lifelines: Iterable[int]) -> int:
        """``os.fork``; closing one of the ``lifelines`` also ends a child that hangs."""
        birth = Birth(lifelines)
        try:
            pid = linux.fork()
        except OSError:
            birth.over()
            raise
        if pid == 0:
            birth.over()
        else:
            self._kept[pid] = birth.keep(pid)
            self._ends[pid] = time.monotonic() + _SECONDS
        return pid

    def pending(self) -> list[int]:
        """The pids of those that have not reached their first line."""
        for pid in [pid for pid, kept in self._kept.items() if is_over(kept)]:
            self._forget(pid)
        return list(self._kept)

    def left(self) -> float | None:
        """Seconds until the first of them is overdue; None if there are none."""
        ends = [self._ends[pid] for pid in self.pending()]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def end_overdue(self) -> None:
        """Kill those that hang."""
        for pid in self.pending():
            if time.monotonic() >= self._ends[pid]:
                processes.kill(pid)

    def descriptors(self) -> list[int]:
        """What must stay open in the server, and be closed in its forks."""
        return [kept for kept in self._kept.values() if kept >= 0]

    def _forget(self, pid: int) -> None:
        kept = self._kept.pop(pid)
        del self._ends[pid]
        if kept >= 0:
            os.close(kept)
