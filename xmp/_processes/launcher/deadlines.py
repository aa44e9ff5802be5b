"""The launcher's own clocks: for a launch that has no supervisor yet, or one that does not act."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from xmp._os import log
from xmp._os.log import say
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Pause, Resume
from xmp._processes.report.timeout_error import seconds
from xmp._processes.terminal.console import on_quit
from xmp._rules.limits import SAY_AFTER, START, TOTAL, Clocks
from xmp._rules.watch import KILL_WAIT
from xmp._words.errors import ReplicaTimeout
from xmp._words.types import Limits

from .job import Job

if TYPE_CHECKING:
    from xmp._processes.terminal.progress import Progress

__all__ = ["Deadlines", "EndedElsewhere", "soonest"]

_TO_END = KILL_WAIT / 1e9 + 6.0
"""Seconds beside the grace that a supervisor has to end a launch: at most 1 to take the stacks,
then to kill, and 5 to answer."""

_LOOK_EVERY = 0.25
"""Seconds between two looks whether another host has ended the launch."""


class EndedElsewhere(Exception):
    """Another host has failed before this one had replicas."""


class Deadlines:
    """How long one launch may take, as its launcher measures it."""

    def __init__(self, job: Job, progress: Progress) -> None:
        self.progress = progress
        """What the user sees of the start."""
        self.ended_elsewhere: Callable[[], bool] | None = None
        """Where there are other hosts: whether one of them has ended the launch."""
        self._ranks = {plan.rank for plan in job.host.replicas}
        self.begin_call(job)

    def rest(self) -> None:
        """Measure nothing until the next call of the gang."""
        self._clocks = Clocks(self._ranks, Limits())

    def begin_call(self, job: Job) -> None:
        """Measure from now on what this call may take: of a gang it is not the first."""
        # Only the supervisor sees the progress of replicas.
        limits = replace(job.settings.limits or Limits(), hang=None)
        self._clocks = Clocks(self._ranks, limits, job.called, begun=job.called)

    def wait(
        self,
        until: Callable[[float | None], bool],
        doing: Callable[[], str],
        step: float | None = None,
    ) -> None:
        """Wait while no replica exists: for ``until(seconds)``, which returns False after those.

        Reports once what it waits for (``doing``) when that takes long; raises ReplicaTimeout when
        the launch exceeds a limit, and EndedElsewhere. ``step``: the longest single wait, in
        seconds.
        """
        if self.ended_elsewhere is not None:
            step = _LOOK_EVERY
        with on_quit(lambda: say(f"xmp: no replica exists yet: {doing()}")):
            while True:
                deadline = self._clocks.deadline
                left = None if deadline is None else (deadline - time.monotonic_ns()) / 1e9
                if until(soonest(left, step, self.progress.next())):
                    return
                self._check(doing)

    def _check(self, doing: Callable[[], str]) -> None:
        if self.ended_elsewhere is not None and self.ended_elsewhere():
            raise EndedElsewhere
        self.progress.glance(doing)
        now = time.monotonic_ns()
        overdue = self._clocks.overdue(now, self._ranks, set())
        if overdue is not None:
            limit = seconds(overdue.limit)
            said = f"{limit} s after the call no replica exists yet: {doing()}"
            code = "XMP-T02" if overdue.name == START else "XMP-T01"
            raise ReplicaTimeout(f"{overdue.name}={limit}: {said}", code=code)
        if self._clocks.late(now):
            waited = seconds(SAY_AFTER)
            log.warning("%s s after the call no replica exists yet: %s", waited, doing())

    @property
    def paused_for(self) -> int:
        """Nanoseconds for which the user has stopped the launch or debugged a replica."""
        return self._clocks.paused_for(time.monotonic_ns())

    def asked(self, message: Message) -> None:
        """Stop the clocks while the user has stopped the launch."""
        if isinstance(message, Pause):
            self.pause("stopped")
        elif isinstance(message, Resume):
            self.resume("stopped")

    def pause(self, why: str) -> None:
        """Stop the clocks, or add a reason for that."""
        self._clocks.pause(time.monotonic_ns(), why)

    def resume(self, why: str) -> None:
        """Remove a reason; after the last one the clocks run again."""
        self._clocks.resume(time.monotonic_ns(), why)

    def left_to_supervisor(self, grace: float, stopped: Callable[[], bool]) -> float | None:
        """Return the seconds until the supervisor must have ended a launch with a ``timeout``.

        0 if the supervisor is ``stopped`` when the timeout has passed: it will not do it.
        """
        within = int((grace + _TO_END) * 1e9)
        left = self._clocks.left_to_end(time.monotonic_ns(), within, stopped)
        return None if left is None else left / 1e9

    def not_ended(self, supervisor: int, writes: bool) -> ReplicaTimeout:
        """Make the error for a supervisor that has not; ``writes``: it waits to write output."""
        why = f"supervisor {supervisor} did not end the launch"
        if writes:
            why = (
                "all replicas have ended, but xmp cannot write the rest of their output: nothing "
                "reads the launcher's standard output or error"
            )
        return ReplicaTimeout(
            f"{TOTAL}={seconds(self._clocks.limits.total or 0)}: {why}", code="XMP-T01"
        )


def soonest(*waits: float | None) -> float | None:
    """Return the shortest of these waits, at least 0; None without any."""
    return min((max(0.0, wait) for wait in waits if wait is not None), default=None)
