"""A fork server's forks that have not reached their first line: see ``system/birth``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from xmp._processes.system import linux, processes
from xmp._processes.system.birth import Birth, is_over

__all__ = ["Births"]

_SECONDS = 30.0
"""Seconds for a fork: one that takes longer hangs in a library's at-fork hook, with its launch."""


class Births:
    """The forks that do not yet look after themselves."""

    def __init__(self) -> None:
        self._kept: dict[int, int] = {}
        """The descriptor to keep open, by pid."""
        self._ends: dict[int, float] = {}

    def fork(self, lifelines: Iterable[int]) -> int:
        """Fork as ``os.fork``; closing one of the ``lifelines`` also ends a child that hangs."""
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
        """Return the pids of the forks that have not reached their first line."""
        for pid in [pid for pid, kept in self._kept.items() if is_over(kept)]:
            self._forget(pid)
        return list(self._kept)

    def left(self) -> float | None:
        """Return the seconds until the first pending fork is overdue; None if there is none."""
        ends = [self._ends[pid] for pid in self.pending()]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def end_overdue(self) -> None:
        """Kill the forks that hang."""
        for pid in self.pending():
            if time.monotonic() >= self._ends[pid]:
                processes.kill(pid)

    def descriptors(self) -> list[int]:
        """Return the descriptors that must stay open in the server, and be closed in its forks."""
        return [kept for kept in self._kept.values() if kept >= 0]

    def _forget(self, pid: int) -> None:
        kept = self._kept.pop(pid)
        del self._ends[pid]
        if kept >= 0:
            os.close(kept)
