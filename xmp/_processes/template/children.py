"""The children of a fork server: those it has forked, and orphans, which it adopts or ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from xmp._processes.system import processes

__all__ = ["SUPERVISOR", "Children"]

SUPERVISOR = "xmp-supervisor"


class Children:
    """Reaps children; ``fileno()`` is readable when one has ended."""

    def __init__(self, adopts: bool) -> None:
        self.own: set[int] = set()
        """Supervisors and script holders: each ends by itself."""
        self._adopts = adopts
        self._unkillable: set[int] = set()
        """They did not end after SIGKILL: do not wait for them again."""
        self.wakeup = _wakeup_on_children()

    def fileno(self) -> int:
        """The descriptor, for selectors."""
        return self.wakeup[0]

    def reap(self) -> list[tuple[int, int]]:
        """The pid and the wait status of each child that has ended."""
        _drain(self.wakeup[0])
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._unkillable.discard(pid)
            ended.append((pid, status))
        return ended

    def end_orphans(self, helpers: Iterable[int]) -> None:
        """End what ended children have left, except ``helpers`` and, if it adopts, supervisors.

        The supervisors of a script holder that was killed go on with their launches.
        """
        if self._adopts:
            strangers = set(processes.children(os.getpid())) - self.own
            self.own |= {pid for pid in strangers if _command(pid) == SUPERVISOR}
        keep = {*self.own, *helpers, *self._unkillable}
        self._unkillable |= processes.end_descendants(keep)

    def leave(self) -> None:
        """In a fresh child: SIGCHLD has its default again and wakes no server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in self.wakeup:
            os.close(end)


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _wakeup_on_children() -> tuple[int, int]:
    """A pipe that becomes readable whenever a child has ended."""
    heard, said = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(said, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(said, warn_on_full_buffer=False)
    return heard, said


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
