"""A process of another launch, held so that a signal never reaches a later one with its pid."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import dataclass

from xmp._os.proc import Process, alive

from .linux import open_pidfd, ready

__all__ = ["HeldProcess"]


@dataclass(eq=False)
class HeldProcess:
    """A process held by a pidfd, which never refers to another one, or else by its start time.

    Without a pidfd the start time is read before each use. psutil is not used: psutil.Process reads
    the start time and then calls kill(2), and the pid may be another process's by then;
    psutil.wait_procs without pidfds counts a zombie as alive, and in a container process 1 may
    never reap it.
    """

    process: Process
    pidfd: int | None

    @classmethod
    def hold(cls, process: Process) -> HeldProcess | None:
        """Hold a process. Return None if it has ended meanwhile."""
        held = cls(process, open_pidfd(process.pid))
        if held._is_same():  # read after the pidfd was opened, so it refers to this process
            return held
        held.close()
        return None

    def _is_same(self) -> bool:
        now = alive(self.process.pid)
        return now is not None and now.started == self.process.started

    @property
    def lives(self) -> bool:
        """Whether the process has not ended; a zombie has ended."""
        if self.pidfd is None:
            return self._is_same()
        return not ready(self.pidfd, select.POLLIN)

    def signal(self, number: int) -> None:
        """Send a signal to this process and to no other."""
        try:
            if self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, number)
            elif self._is_same():
                os.kill(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended; or it belongs to another user by now, and lives on

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
