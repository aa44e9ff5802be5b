"""The children of a fork server: its own forks, and orphans, which it adopts or ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from xmp._os import proc
from xmp._processes.supervisor.descriptors import drain, wake_on_ends
from xmp._processes.system import processes

__all__ = ["SUPERVISOR", "Children"]

SUPERVISOR = "xmp-supervisor"


class Children:
    """The children of this process; ``fileno()`` is readable when one has ended."""

    def __init__(self, adopts: bool) -> None:
        self.own: set[int] = set()
        """Supervisors and script holders: each ends by itself."""
        self._adopts = adopts
        self._unkillable: set[int] = set()
        """Children that did not end after SIGKILL: they are not waited for again."""
        self.wakeup = wake_on_ends(3)

    def fileno(self) -> int:
        """Return the descriptor for selectors."""
        return self.wakeup[0]

    def reap(self) -> list[tuple[int, int]]:
        """Reap all children that have ended. Return the pid and the wait status of each."""
        drain(self.wakeup[0])
        ended = []
        try:
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                self._unkillable.discard(child[0])
                ended.append(child)
        except ChildProcessError:
            pass
        return ended

    def end_orphans(self, helpers: Iterable[int]) -> None:
        """End the processes that ended children have left, except ``helpers``.

        If this server adopts, supervisors are spared too: those of a script holder that was killed
        go on with their launches.
        """
        if self._adopts:
            strangers = set(processes.children(os.getpid())) - self.own
            self.own |= {pid for pid in strangers if proc.text(f"/proc/{pid}/comm") == SUPERVISOR}
        keep = {*self.own, *helpers, *self._unkillable}
        self._unkillable |= processes.end_descendants(keep)

    def leave(self) -> None:
        """Restore SIGCHLD's default and close the wake-up pipe, in a fresh child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in self.wakeup:
            os.close(end)
