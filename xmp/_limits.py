"""How long a launch may take: the clocks beside the failure rules. Pure, like ``_watch``.

All times are monotonic nanoseconds. While the user has stopped the launch (Ctrl-Z) or debugs a
replica the clocks stand still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from xmp._types import Limits

__all__ = ["HANG", "SAY_AFTER", "START", "TOTAL", "Clocks", "Overdue"]

TOTAL = "timeout"
START = "start_timeout"
HANG = "hang_timeout"
SAY_AFTER = 30_000_000_000
"""After this long without every replica in the function, it is said where each one is."""


@dataclass(frozen=True)
class Overdue:
    """A limit that a launch has passed."""

    name: str
    """``TOTAL``, ``START`` or ``HANG``: the option as the user knows it."""
    limit: int
    ranks: tuple[int, ...]
    """Whom it waited for: who had not finished, or else whose process had not ended."""
    finished: tuple[int, ...] = ()

    @property
    def at_the_end(self) -> bool:
        """Whether all had finished, and only the ends of processes were waited for."""
        return set(self.ranks) <= set(self.finished)

    @property
    def diverged(self) -> bool:
        """Whether some have finished while the others wait, for them or for each other."""
        return self.name == HANG and bool(self.finished) and not self.at_the_end


@dataclass
class Clocks:
    """Told what happens, says what is overdue."""

    ranks: Iterable[int]
    limits: Limits
    called: int = 0
    """When the user called."""
    begun: int = 0
    """When the last replica was made."""
    _outside: set[int] = field(init=False)
    """Who has not reached the function."""
    _silent: set[int] = field(init=False)
    """Of whom no progress was seen yet: an interpreter that starts cannot tell."""
    _calm: int = field(init=False)
    """When somebody was last seen to get on."""
    _say_at: int | None = field(init=False)
    _paused: int | None = None
    _why: set[str] = field(default_factory=set)
    _lost: int = 0

    def __post_init__(self) -> None:
        self._outside = set(self.ranks)
        self._silent = set(self._outside)
        self._calm = self.begun
        # Where the replicas took longer than that to make, the launcher has said so.
        late = self.called + SAY_AFTER <= self.begun
        self._say_at = (self.begun if late else self.called) + SAY_AFTER

    # --- what happens --------------------------------------------------------------------------

    def progress(self, rank: int, at: int) -> None:
        """A replica was getting on then."""
        self._silent.discard(rank)
        self._calm = max(self._calm, at)

    def arrived(self, rank: int, at: int) -> None:
        """A replica is in the function, or past it."""
        self._outside.discard(rank)
        self._silent.discard(rank)
        self._calm = max(self._calm, at)

    def pause(self, at: int, why: str = "") -> None:
        """Stand still, for one reason more."""
        self._why.add(why)
        if self._paused is None:
            self._paused = at

    def resume(self, at: int, why: str = "") -> None:
        """Go on, if that was the last reason; what passed meanwhile does not count."""
        self._why.discard(why)
        if self._paused is not None and not self._why:
            self._lost += at - self._paused
            self._calm, self._paused = max(self._calm, at), None

    # --- what is due ---------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether they stand still."""
        return self._paused is not None

    @property
    def deadline(self) -> int | None:
        """When something may be due next."""
        if self._paused is not None:
            return None
        times = [at for at, _, _ in self._limits()]
        if self._outside and self._say_at is not None:
            times.append(self._say_at + self._lost)
        return min(times, default=None)

    def overdue(self, now: int, live: set[int], finished: set[int]) -> Overdue | None:
        """The first limit that has passed, if one has."""
        if self._paused is not None:
            return None
        for at, name, limit in sorted(self._limits()):
            if now < at:
                break
            if name == HANG and not self._silent.isdisjoint(live):
                self._calm = now
                continue
            # One that has finished may wait for the others at its end, as in JAX's shutdown.
            ranks = self._outside if name == START else live - finished or live
            return Overdue(name, limit, tuple(sorted(ranks)), tuple(sorted(finished)))
        return None

    def late(self, now: int) -> tuple[int, ...]:
        """Once, when it is time to say so: who has not reached the function."""
        due = self._say_at is not None and now >= self._say_at + self._lost
        if not due or not self._outside or self._paused is not None:
            return ()
        self._say_at = None
        return tuple(sorted(self._outside))

    def _limits(self) -> list[tuple[int, str, int]]:
        """(when, which option, its nanoseconds) of every limit that runs now."""
        limits, since = self.limits, self.called + self._lost
        found = []
        if limits.total is not None:
            begun = limits.first + self._lost if limits.first else since
            found.append((begun + limits.total, TOTAL, limits.total))
        if limits.start is not None and self._outside:
            found.append((since + limits.start, START, limits.start))
        if limits.hang is not None:
            found.append((self._calm + limits.hang, HANG, limits.hang))
        return found
