"""The launcher's own clock: for as long as no supervisor can keep one, or if it does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from xmp._errors import ReplicaTimeout
from xmp._limits import SAY_AFTER, START, TOTAL
from xmp._types import Limits
from xmp._watch import KILL_WAIT

from .terminal import on_quit, say
from .timeouts import seconds

if TYPE_CHECKING:
    from .progress import Progress

__all__ = ["Patience"]

_TO_END = KILL_WAIT / 1e9 + 6.0
"""Seconds beside the grace that a supervisor has to end a launch: to take the stacks (1 at most),
to kill, and to answer (5)."""

_TO_ACT = 0.25
"""Seconds after which it is looked whether it can act at all."""


class Patience:
    """How long one launch may take, as its launcher sees it."""

    def __init__(self, called: int, limits: Limits | None, progress: Progress) -> None:
        self.progress = progress
        """What the user sees meanwhile."""
        self._limits = limits or Limits()
        self._called = called
        self._said = False
        self._paused: int | None = None
        self._why: set[str] = set()
        self._lost = 0

    def wait(
        self,
        until: Callable[[float | None], bool],
        doing: Callable[[], str],
        step: float | None = None,
    ) -> None:
        """Wait for ``until(seconds)``, which comes back with False when they are over.

        For the time before there are replicas. Says once what is waited for when it takes long;
        raises ReplicaTimeout when the launch has taken longer than it may. ``step`` is the longest
        wait at a time.
        """
        with on_quit(lambda: say(f"xmp: no replica exists yet: {doing()}")):
            self._wait(until, doing, step)

    def _wait(
        self,
        until: Callable[[float | None], bool],
        doing: Callable[[], str],
        step: float | None,
    ) -> None:
        while not until(self._next(step)):
            self.progress.glance(doing)
            now = time.monotonic_ns()
            first = min(self._given(), default=None)
            if first is not None and now >= first[0]:
                limit = seconds(first[2])
                raise ReplicaTimeout(
                    f"{first[1]}={limit}: {limit} s after the call no replica exists yet: {doing()}"
                )
            if not self._said and now >= self._begun + SAY_AFTER:
                self._said = True
                waited = seconds(SAY_AFTER)
                say(f"xmp: {waited} s after the call no replica exists yet: {doing()}")

    def _given(self) -> list[tuple[int, str, int]]:
        """(when it is over, which option, its nanoseconds) of the limits that count from a call."""
        limits = ((self._begun, START, self._limits.start), (self._all, TOTAL, self._limits.total))
        return [(since + limit, name, limit) for since, name, limit in limits if limit is not None]

    @property
    def stood_still(self) -> int:
        """Nanoseconds for which the user has stopped the launch, or debugged."""
        paused = self._paused
        return self._lost + (0 if paused is None else time.monotonic_ns() - paused)

    @property
    def _begun(self) -> int:
        return self._called + self.stood_still

    @property
    def _all(self) -> int:
        """When the first attempt began."""
        return (self._limits.first or self._called) + self.stood_still

    def _next(self, step: float | None) -> float | None:
        due = [at for at, _, _ in self._given()]
        due += [] if self._said else [self._begun + SAY_AFTER]
        steps = [max(0, at - time.monotonic_ns()) / 1e9 for at in due]
        wishes = [wish for wish in (step, self.progress.next()) if wish is not None]
        return min([*steps, *wishes], default=None)

    # --- while there is a supervisor -----------------------------------------------------------

    def asked(self, name: str) -> None:
        """While the user has stopped the launch its time does not pass."""
        if name == "pause":
            self.pause("stopped")
        elif name == "resume":
            self.resume("stopped")

    def pause(self, why: str) -> None:
        """Stand still, for one reason more."""
        self._why.add(why)
        self._paused = self._paused or time.monotonic_ns()

    def resume(self, why: str) -> None:
        """Go on, if that was the last reason."""
        self._why.discard(why)
        if self._paused is not None and not self._why:
            self._lost += time.monotonic_ns() - self._paused
            self._paused = None

    def left_to_supervisor(self, grace: float, stopped: Callable[[], bool]) -> float | None:
        """Seconds until it must have ended a launch with a ``timeout``; None without one.

        One that is ``stopped`` when the time is over will not.
        """
        total = self._limits.total
        if total is None:
            return None
        left = (self._all + total - time.monotonic_ns()) / 1e9
        if left + _TO_ACT > 0:
            return left + _TO_ACT
        return 0 if stopped() else left + grace + _TO_END

    def not_ended(self, supervisor: int, writes: bool) -> ReplicaTimeout:
        """The error when it has not; ``writes``: all that it still does."""
        limit = seconds(self._limits.total or 0)
        why = f"supervisor {supervisor} did not end the launch"
        if writes:
            why = (
                "all replicas have ended, but not all that they wrote has been read: the "
                "launcher's standard output or error takes nothing"
            )
        return ReplicaTimeout(f"{TOTAL}={limit}: {why}")
