"""Ending what launches have left behind: exactly those processes, each held by a pidfd."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from xmp._probe.holders import Holder
from xmp._probe.launches import ENGINE, Process, alive
from xmp._probe.leftovers import described, leftovers

from . import kernel

__all__ = ["clean", "look"]

_GRACE = 2.0
_KILL_WAIT = 2.0
_STEP = 0.01
_ROUNDS = 5


def look() -> list[Holder]:
    """What ``clean`` would end now."""
    return [described(process) for process in leftovers()]


def clean() -> tuple[list[Holder], list[Holder]]:
    """End what is left: SIGTERM, 2 s, SIGKILL. Returns what has ended, and what has not."""
    kernel.raise_descriptor_limit()  # one for each process
    ended: list[Holder] = []
    stuck: list[Holder] = []
    found = leftovers()
    for _ in range(_ROUNDS):  # what is being ended may start something
        told = {process: described(process) for process in found}
        left = _end(found)
        ended += [holder for process, holder in told.items() if process not in left]
        stuck = [told[process] for process in left]
        if not found or left:
            break
        found = leftovers(settle=0.1)
    return ended, stuck


def _end(found: Sequence[Process]) -> list[Process]:
    """End these; returns those that live on."""
    held = [each for each in map(_Held.of, found) if each is not None]
    try:
        for each in held:
            # A supervisor or template that is woken would kill at once, without any grace.
            if each.process.name not in ENGINE:
                each.signal(signal.SIGTERM)
                each.signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
        _wait([each for each in held if each.process.name not in ENGINE], _GRACE)
        for each in held:
            each.signal(signal.SIGKILL)
        _wait(held, _KILL_WAIT)
        return [each.process for each in held if each.lives]
    finally:
        for each in held:
            each.close()


def _wait(held: Sequence[_Held], seconds: float) -> None:
    end = time.monotonic() + seconds
    while any(each.lives for each in held) and time.monotonic() < end:
        time.sleep(_STEP)


@dataclass(eq=False)
class _Held:
    """A process whose number cannot come to mean another one."""

    process: Process
    watch: int | None

    @classmethod
    def of(cls, process: Process) -> _Held | None:
        """None when it has ended meanwhile."""
        watch = kernel.open_pidfd(process.pid)
        held = cls(process, watch)
        if held._is_same():  # looked at after it was opened: this is what the descriptor means
            return held
        held.close()
        return None

    def _is_same(self) -> bool:
        now = alive(self.process.pid)
        return now is not None and now.started == self.process.started

    @property
    def lives(self) -> bool:
        """Whether it has not ended, reaped or not."""
        if self.watch is None:
            return self._is_same()
        poller = select.poll()
        poller.register(self.watch, select.POLLIN)
        return not poller.poll(0)

    def signal(self, number: int) -> None:
        """Send a signal to this process, to nobody else."""
        try:
            if self.watch is not None:
                signal.pidfd_send_signal(self.watch, number)
            elif self._is_same():
                os.kill(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # ended; or another user's by now: then it lives on, and that is told

    def close(self) -> None:
        """Let go of it."""
        if self.watch is not None:
            os.close(self.watch)
