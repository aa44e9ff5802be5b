"""What the launcher does with a SIGTERM, as schedulers send before they take a machine away.

Replicas that call ``preempted()`` agree, through the supervisor, on the call at which it turns
true. All others get the signal.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from xmp._inside.collectives import note_preemption
from xmp._os import log
from xmp._processes.system import processes
from xmp._processes.system.stdio import flush

from .outcome import Outcome

__all__ = ["Sigterm"]


class Sigterm:
    """Whether this process must still end by SIGTERM when the launch has ended."""

    def __init__(self) -> None:
        self.agreed = False
        """Whether the replicas end by themselves, at a call on which they have agreed."""
        self.pending = False
        """Whether the signal has come, and the replicas have not agreed to end by themselves."""
        self._came = 0
        """Monotonic nanoseconds."""

    def came(self, supervisor: int) -> None:
        """Note the signal; kill a supervisor that is stopped: it would never react."""
        self.pending = True
        self._came = time.monotonic_ns()
        if supervisor and processes.is_stopped(supervisor):
            processes.kill(supervisor)

    def answered(self, agreed: bool) -> None:
        """Take the supervisor's answer: the replicas have agreed on a call, or get the signal."""
        self.pending, self.agreed = not agreed, agreed
        if agreed:
            note_preemption()

    def carry_out(self, outcome: Outcome) -> None:
        """End this process, after the launch, as the signal would have without xmp.

        A failure from before the signal is printed, as nothing else will report it.
        """
        if not self.pending or threading.current_thread() is not threading.main_thread():
            return
        if any(failure.at < self._came for failure in outcome.failures):
            log.error(str(outcome.error()))
        if os.getpid() == 1:  # the kernel ignores its signals that have no handler
            raise SystemExit(128 + signal.SIGTERM)
        flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
