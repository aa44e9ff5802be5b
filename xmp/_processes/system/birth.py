"""The time from a fork to the child's first line, in which the child cannot look after itself.

Python runs the at-fork hooks of every library before ``os.fork`` returns in the child. One that
hangs there has armed no lifeline, and holds copies of all its parent's descriptors: connections
and lifelines that lead to the parent stay open when that ends.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

from . import linux
from .descriptors import move_above

__all__ = ["Birth", "is_over"]


class Birth:
    """Until the child has called ``over``, the kernel kills it when its parent ends.

    ``lifelines`` are pipes whose hang-up ends it as well. The child must see the hang-up of a pipe
    of which only the parent has the writing end, so that end is opened after the fork.

    What remains: a parent that is killed after clone(2) and before ``keep`` (60 to 100 µs, and the
    parent's own at-fork hooks) leaves a child that hangs in a hook. In a child of a template or
    supervisor that still ends with the launcher: these processes arm their own lifeline while
    they fork, its owner is their process group, and the child is born into that. A keeper that was
    forked from the launcher would stay. No PR_SET_PDEATHSIG closes this: the child would have to
    set it, and it comes when the forking *thread* ends.
    """

    def __init__(self, lifelines: Iterable[int] = (), above: int = 0) -> None:
        """Prepare it, before the fork; its descriptors get numbers from ``above`` up."""
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
        """In the parent: a descriptor that must stay open until ``is_over``; -1 without one."""
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
            pass  # without /proc, or with no descriptor left, it is not watched; or it has ended
        self.over()
        return move_above(writer, self._above) if self._above and writer >= 0 else writer

    def over(self) -> None:
        """In the child, at its first line: from here on it looks after itself."""
        for pipe in self._watched:
            os.close(pipe)
        self._watched.clear()


def is_over(kept: int) -> bool:
    """Whether the child whose birth ``keep`` watches has reached its first line, or has ended."""
    return kept < 0 or linux.ready(kept, select.POLLERR)
