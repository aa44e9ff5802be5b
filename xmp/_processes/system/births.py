"""The time from a fork to the child's first line, in which the child cannot look after itself.

Python runs the at-fork hooks of every library before ``os.fork`` returns in the child. A child that
hangs there has armed no lifeline, and holds copies of all its parent's descriptors: connections and
lifelines that lead to the parent stay open when the parent ends.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable

from . import linux, processes
from .descriptors import move_above

__all__ = ["Birth", "Births", "is_over"]

_SECONDS = 30.0
"""Seconds for a fork: one that takes longer hangs in a library's at-fork hook, with its launch."""


class Birth:
    """A watch over a child: until it has called ``over``, the kernel kills it when its parent ends.

    ``lifelines`` are further pipes whose hang-up kills the child. The child must see the hang-up of
    a pipe of which only the parent has the writing end, so that end is opened after the fork.

    One gap remains: a parent that is killed after clone(2) and before ``keep`` (60 to 100 µs, and
    the parent's own at-fork hooks) leaves a child that hangs in a hook. A child of a template or
    supervisor still ends with the launcher then: these processes arm their own lifeline while they
    fork, its owner is their process group, and the child is born into that. A keeper that was
    forked from the launcher would stay. PR_SET_PDEATHSIG cannot close the gap: the child would have
    to set it, and the signal comes when the forking *thread* ends.
    """

    def __init__(self, lifelines: Iterable[int] = (), above: int = 0) -> None:
        """Prepare the watch, before the fork; its descriptors get numbers from ``above`` up."""
        self._above = above
        self._watched: list[int] = []
        if not linux.kills_on_hang_up():
            return
        reader, writer = os.pipe()
        os.close(writer)
        self._watched.append(move_above(reader, above) if above else reader)
        for lifeline in lifelines:
            try:  # opened again: the child arms its own lifeline independently
                self._watched.append(linux.reopened(lifeline, os.O_RDONLY))
            except OSError:
                pass
        for pipe in self._watched:
            linux.kill_on_hang_up(pipe)

    def keep(self, pid: int) -> int:
        """Begin the watch, in the parent. Return a descriptor to keep until ``is_over``, or -1."""
        if not self._watched:
            return -1
        writer = -1
        try:
            writer = linux.reopened(self._watched[0], os.O_WRONLY)
            for pipe in self._watched:
                linux.set_owner(pipe, pid)
            if any(linux.ready(pipe, 0) for pipe in self._watched[1:]):
                os.kill(pid, signal.SIGKILL)  # closed before it had an owner: no signal would come
        except OSError:
            pass  # no /proc, or no descriptor left: it is not watched; or it has ended
        self.over()
        return move_above(writer, self._above) if self._above and writer >= 0 else writer

    def over(self) -> None:
        """End the watch, in the child at its first line: it looks after itself from now on."""
        for pipe in self._watched:
            os.close(pipe)
        self._watched.clear()


def is_over(kept: int) -> bool:
    """Return whether the child has reached its first line, or has ended; ``kept``: see ``keep``."""
    return kept < 0 or linux.ready(kept, select.POLLERR)


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
