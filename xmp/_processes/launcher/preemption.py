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
from xmp._processes.system.stdio import flush
from xmp._rules.ending_rules import END, REPORT, SigtermRules

from .outcome import Outcome

__all__ = ["Sigterm"]


class Sigterm:
    """A SIGTERM to this process, while a launch runs."""

    def __init__(self) -> None:
        self._rules = SigtermRules()

    def came(self) -> None:
        """Note the signal."""
        self._rules.came(time.monotonic_ns())

    def answered(self, agreed: bool) -> None:
        """Take the supervisor's answer: the replicas have agreed on a call, or get the signal."""
        self._rules.answered(agreed)
        if agreed:
            note_preemption()

    def carry_out(self, outcome: Outcome) -> None:
        """End this process, after the launch, as the signal would have without xmp."""
        if threading.current_thread() is not threading.main_thread():
            return
        actions = self._rules.over([failure.at for failure in outcome.failures])
        if REPORT in actions:
            log.error(str(outcome.error()))
        if END not in actions:
            return
        if os.getpid() == 1:  # the kernel ignores its signals that have no handler
            raise SystemExit(128 + signal.SIGTERM)
        flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
