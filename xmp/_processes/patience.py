"""The launcher's own clock: for as long as no supervisor can keep one, or if it does not."""

from __future__ import annotations

import time
from collections.abc import Callable

from xmp._errors import ReplicaTimeout
from xmp._limits import SAY_AFTER, START, TOTAL
from xmp._types import Limits
from xmp._watch import KILL_WAIT

from .terminal import say
from .timeouts import seconds

__all__ = ["Patience"]

_TO_END = KILL_WAIT / 1e9 + 6.0
"""Seconds beside the grace that a supervisor has to end a launch: to take the stacks (1 at most),
to kill, and to answer (5)."""


class Patience:
    """How long one launch may take, as its launcher sees it."""

    def __init__(self, called: int, limits: Limits | None) -> None:
        self._limits = limits or Limits()
        self._called = called
        self._said = False
        self._paused: int | None = None

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
        while not until(self._next(step)):
            first = min(self._given(), default=None)
            if first is not None and self._passed() >= first[0]:
                limit = seconds(first[0])
                raise ReplicaTimeout(
                    f"{first[1]}={limit}: {limit} s after the call no replica exists yet: {doing()}"
                )
            if not self._said and self._passed() >= SAY_AFTER:
                self._said = True
                waited = seconds(SAY_AFTER)
                say(f"xmp: {waited} s after the call no replica exists yet: {doing()}")

    def _given(self) -> list[tuple[int, str]]:
        limits = ((self._limits.start, START), (self._limits.total, TOTAL))
        return [(limit, name) for limit, name in limits if limit is not None]

    def _passed(self) -> int:
        return time.monotonic_ns() - self._called

    def _next(self, step: float | None) -> float | None:
        due = [limit for limit, _ in self._given()] + ([] if self._said else [SAY_AFTER])
        steps = [max(0, at - self._passed()) / 1e9 for at in due]
        return min([*steps, *([] if step is None else [step])], default=None)

    # --- while there is a supervisor -----------------------------------------------------------

    def asked(self, name: str) -> None:
        """While the user has stopped the launch its time does not pass."""
        if name == "pause":
            self._paused = time.monotonic_ns()
        elif name == "resume" and self._paused is not None:
            self._called += time.monotonic_ns() - self._paused
            self._paused = None

    def left_to_supervisor(self, grace: float) -> float | None:
        """Seconds until it must have ended a launch with a ``timeout``; None without one."""
        total = self._limits.total
        return None if total is None else (total - self._passed()) / 1e9 + grace + _TO_END

    def not_ended(self, supervisor: int) -> ReplicaTimeout:
        """The error when it has not."""
        limit = seconds(self._limits.total or 0)
        return ReplicaTimeout(f"{TOTAL}={limit}: supervisor {supervisor} did not end the launch")
