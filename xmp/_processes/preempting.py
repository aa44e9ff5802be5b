"""A SIGTERM of the launcher, as schedulers send before they take a machine away: both its ends.

Replicas that call ``preempted()`` agree, through the supervisor, on the call at which it turns
true. All others get the signal.
"""

from __future__ import annotations

import os
import signal
import threading

from xmp._preemption import note_preemption
from xmp._types import ReplicaPlan

from . import family, kernel
from .terminal import flush

__all__ = ["Agreement", "Sigterm"]


class Sigterm:
    """In the launcher: what is to become of it when the launch has ended."""

    def __init__(self) -> None:
        self._pending = False

    def came(self, supervisor: int) -> None:
        """It has arrived; a supervisor that somebody has stopped would never hear of it."""
        self._pending = True
        if supervisor and family.is_stopped(supervisor):
            family.kill(supervisor)

    def answered(self, agreed: bool) -> None:
        """The replicas see to it themselves, or have got the signal."""
        self._pending = not agreed
        if agreed:
            note_preemption()

    def carry_out(self) -> None:
        """Nothing of the launch is left: end as this process would have ended without us."""
        if not self._pending or threading.current_thread() is not threading.main_thread():
            return
        if os.getpid() == 1:  # the kernel drops what the first process has no handler for
            raise SystemExit(128 + signal.SIGTERM)
        flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


class Agreement:
    """In the supervisor: at which call ``preempted()`` turns true, the same for all who call it.

    Each call is told here from the moment on at which the flag is up, and answered at once: with
    the number that was agreed on, or with 0 for "not yet". Whoever has called before is waited for,
    then the next number that nobody has reached is it. On many hosts the hosts would agree here.
    """

    def __init__(self) -> None:
        self.flag = kernel.memory_file("xmp-preempted")
        """Where everybody looks who has got it."""
        os.write(self.flag, b"\0")
        self._counts: dict[int, int] = {}
        """The latest call of everyone who takes part, by local rank."""
        self._silent: set[int] = set()
        """Who has not told since the flag is up."""
        self._number = 0
        self._begun = False

    def begin(self) -> bool:
        """Raise the flag; False when that has been done before, or nobody would look at it."""
        if self._begun or not self._counts:
            return False
        self._begun, self._silent = True, set(self._counts)
        os.pwrite(self.flag, b"\1", 0)
        return True

    def report(self, local_rank: int, count: int) -> int:
        """Take a call in; what was agreed on."""
        self._counts[local_rank] = count
        self._silent.discard(local_rank)
        self._decide()
        return self._number

    def forget(self, *plans: ReplicaPlan) -> None:
        """These replicas will make no further call."""
        for plan in plans:
            self._counts.pop(plan.local_rank, None)
            self._silent.discard(plan.local_rank)
        self._decide()

    def _decide(self) -> None:
        if self._begun and not self._number and not self._silent and self._counts:
            self._number = max(self._counts.values()) + 1
