"""The time limits of a launch: which deadline is next, which has passed. Pure, like ``watch``.

All times are monotonic nanoseconds. The clocks stand still while the user has stopped the launch
(Ctrl-Z) or debugs a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from xmp._words.types import Limits

__all__ = ["HANG", "SAY_AFTER", "START", "TOTAL", "TO_ACT", "Clocks", "Overdue"]

TOTAL = "timeout"
START = "start_timeout"
HANG = "hang_timeout"
TO_ACT = 250_000_000
"""The time after ``total`` at which it is checked whether what ends the launch can act at all."""
SAY_AFTER = 30_000_000_000
"""If some replica has not reached the function after this time, xmp reports once where each is."""


@dataclass(frozen=True)
class Overdue:
    """A limit that a launch has exceeded."""

    name: str
    """``TOTAL``, ``START`` or ``HANG``: the user's option."""
    limit: int
    ranks: tuple[int, ...]
    """The ranks that xmp waited for: they had not finished, or their process had not ended."""
    finished: tuple[int, ...] = ()
    """The ranks whose function had returned, or whose process had ended without a failure."""

    @property
    def at_the_end(self) -> bool:
        """Whether all ranks had finished, and only their processes had not ended."""
        return set(self.ranks) <= set(self.finished)

    @property
    def diverged(self) -> bool:
        """Whether some ranks had finished while the others waited, for them or for each other."""
        return self.name == HANG and bool(self.finished) and not self.at_the_end


@dataclass
class Clocks:
    """The clocks of one launch: told what happens, they return what is overdue."""

    ranks: Iterable[int]
    limits: Limits
    called: int = 0
    """When the user called, in monotonic nanoseconds."""
    begun: int = 0
    """When the last replica was started."""
    _outside: set[int] = field(init=False)
    """The ranks that have not reached the function."""
    _unseen: set[int] = field(init=False)
    """The ranks that have shown no progress yet: an interpreter that is starting shows none."""
    _last_progress: int = field(init=False)
    """The start of ``hang``: the last progress of any replica, or the end of a pause."""
    _report_at: int | None = field(init=False)
    _paused_at: int | None = None
    _reasons: set[str] = field(default_factory=set)
    """The reasons for which the clocks are paused."""
    _past_pauses: int = 0
    """The length of all pauses that are over."""

    def __post_init__(self) -> None:
        self._outside = set(self.ranks)
        self._unseen = set(self._outside)
        self._last_progress = self.begun
        # Where starting the replicas took longer than that, the launcher has reported it.
        late = self.called + SAY_AFTER <= self.begun
        self._report_at = (self.begun if late else self.called) + SAY_AFTER

    # --- what happens --------------------------------------------------------------------------

    def progress(self, rank: int, at: int) -> None:
        """Note that a replica made progress at that time."""
        self._unseen.discard(rank)
        self._last_progress = max(self._last_progress, at)

    def arrived(self, rank: int, at: int) -> None:
        """Note that a replica has reached the function, or is past it."""
        self._outside.discard(rank)
        self._unseen.discard(rank)
        self._last_progress = max(self._last_progress, at)

    def pause(self, at: int, why: str = "") -> None:
        """Stop the clocks, or add a reason for that."""
        self._reasons.add(why)
        if self._paused_at is None:
            self._paused_at = at

    def resume(self, at: int, why: str = "") -> None:
        """Remove a reason; after the last one, run the clocks on from where they stopped."""
        self._reasons.discard(why)
        if self._paused_at is not None and not self._reasons:
            self._past_pauses += at - self._paused_at
            self._last_progress, self._paused_at = max(self._last_progress, at), None

    def paused_for(self, now: int) -> int:
        """Return the length of all pauses until ``now``."""
        return self._past_pauses + (0 if self._paused_at is None else now - self._paused_at)

    # --- what is due ---------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether the clocks are stopped."""
        return self._paused_at is not None

    def total_deadline(self, now: int) -> int | None:
        """Return when ``total`` is over, if a pause ends at ``now``; None without that limit."""
        if self.limits.total is None:
            return None
        return (self.limits.first or self.called) + self.limits.total + self.paused_for(now)

    def left_to_end(self, now: int, within: int, stopped: Callable[[], bool]) -> int | None:
        """Return how long the supervisor still has to end the launch; None without ``total``.

        ``within``: what it has after that limit. None of it if it is ``stopped`` when the limit has
        passed: it will not do it.
        """
        deadline = self.total_deadline(now)
        if deadline is None:
            return None
        left = deadline - now
        if left + TO_ACT > 0:
            return left + TO_ACT
        return 0 if stopped() else left + within

    @property
    def deadline(self) -> int | None:
        """When a limit or a report is next due; None if none is, or while the clocks are paused."""
        if self._paused_at is not None:
            return None
        times = [at for at, _, _ in self._limits()]
        if self._outside and self._report_at is not None:
            times.append(self._report_at + self._past_pauses)
        return min(times, default=None)

    def overdue(self, now: int, live: set[int], finished: set[int]) -> Overdue | None:
        """Return the first limit that is exceeded at ``now``, if any."""
        if self._paused_at is not None:
            return None
        for at, name, limit in sorted(self._limits()):
            if now < at:
                break
            if name == HANG and not self._unseen.isdisjoint(live):
                self._last_progress = now
                continue
            # A rank that has finished may wait for the others at its end, as in JAX's shutdown.
            ranks = self._outside if name == START else live - finished or live
            return Overdue(name, limit, tuple(sorted(ranks)), tuple(sorted(finished)))
        return None

    def late(self, now: int) -> tuple[int, ...]:
        """Return the ranks that have not reached the function, once, when the report is due."""
        due = self._report_at is not None and now >= self._report_at + self._past_pauses
        if not due or not self._outside or self._paused_at is not None:
            return ()
        self._report_at = None
        return tuple(sorted(self._outside))

    def _limits(self) -> list[tuple[int, str, int]]:
        """Return (deadline, option, nanoseconds) of every limit that applies now."""
        limits, since = self.limits, self.called + self._past_pauses
        found = []
        if limits.total is not None:
            first = limits.first + self._past_pauses if limits.first else since
            found.append((first + limits.total, TOTAL, limits.total))
        if limits.start is not None and self._outside:
            found.append((since + limits.start, START, limits.start))
        if limits.hang is not None:
            found.append((self._last_progress + limits.hang, HANG, limits.hang))
        return found
