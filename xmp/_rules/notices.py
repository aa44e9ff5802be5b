"""When a wait of ranks for others is worth a word, and when it counts as a hang. Pure.

The supervisor looks at the records a few times within the limit and feeds what it has seen. A
*wait* is a collective in which some rank is and another of its group is not. It is worth a notice
after the limit or three times the longest wait that has ended well, whichever is longer, and once
more when it goes on for three times as long.

A rank that has not come *works* if, since the wait began, it has called ``xmp.heartbeat()``, its
processes have used a fifth of a core, or it has read or written something. While one of those that
have not come works, the notice comes ten times as late, and ``hang_timeout`` does not count. A rank
that polls every 10 ms uses a hundredth of a core, and does not work.

Calls of torch or JAX themselves leave no record. Where no rank does anything for as long as the
limit, without a wait that is known, the stacks are worth a look (``Idle``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xmp._words.record import Record

__all__ = [
    "LOOKS", "LOOKS_AT_REST", "VARIABLE", "Idle", "Look", "Notice", "Waits", "limit_of", "works",
]  # fmt: skip

VARIABLE = "XMP_HANG_NOTICE"
_DEFAULT = "30"

BUSY = 0.2
"""The part of a core above which a rank works."""
PATIENCE = 3
"""How many times the longest wait so far is no reason for a word; also until the second one."""
WORKING = 10
"""How many times longer ranks that work are waited for."""
ELSEWHERE = (1, PATIENCE, WORKING)
"""How many times the limit ranks of other hosts are waited for until those are asked, each time."""
LOOKS, LOOKS_AT_REST = 6, 2
"""Looks within a limit: while some rank waits for others, and while none does."""

Wait = tuple[int, int]
"""Group and number of a collective."""


def limit_of(env: Mapping[str, str]) -> int:
    """Return the limit that the variable sets, in nanoseconds; 0: never.

    Raises:
        ValueError: it is not a number of seconds.
    """
    text = env.get(VARIABLE, "") or _DEFAULT
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ValueError(
            f"{VARIABLE} is {text!r}; it must be a number of seconds below 1e9, or 0 for never"
        )
    return int(seconds * 1e9)


@dataclass(frozen=True)
class Look:
    """What is seen of one rank at one moment. Times are monotonic nanoseconds."""

    rank: int
    record: Record
    at: int
    used: int = 0
    """Processor time of its processes so far, in nanoseconds."""
    moved: int = 0
    """Bytes that they have read and written so far."""


@dataclass(frozen=True)
class Notice:
    """A wait that is worth a word."""

    absent: tuple[int, ...]
    """Empty: all of this host have come, and those of other hosts are to be asked."""
    seconds: int
    works: bool
    """True: those that have not come work. Of other hosts: name them even if they work."""


@dataclass
class _Known:
    """One wait, from the first look that has seen it."""

    since: int
    first: dict[int, Look]
    """The first look at each rank that had not come then."""
    said: int = 0
    """How many notices there were."""
    worked: int = 0
    """When one of those that have not come was last seen to work."""

    @property
    def idle_since(self) -> int:
        """Since when none of those that have not come has worked."""
        return max(self.since, self.worked)


@dataclass
class Waits:
    """The waits of one launch on one host."""

    limit: int
    """After how many nanoseconds a wait is worth a notice; 0: never."""
    longest: int = 0
    """The longest wait that has ended well."""
    begun: int = 0
    """No wait counts before that time."""
    others: bool = False
    """True: collectives of all ranks have ranks of other hosts."""
    _known: dict[Wait, _Known] = field(default_factory=dict)

    def look(self, looks: Iterable[Look]) -> list[Notice]:
        """Take what is seen of all ranks of this host; return what is worth a word now."""
        by_rank = {look.rank: look for look in looks}
        now = _waits(by_rank, self.others)
        for wait in [*self._known]:
            if wait not in now:
                self._ended(wait, by_rank)
        notices = []
        for wait, (inside, absent) in now.items():
            known = self._note(wait, inside, absent)
            notice = (
                self._due(known, inside[0], absent)
                if absent
                else self._due_elsewhere(known, inside[0])
            )
            if notice is not None:
                known.said += 1
                notices.append(notice)
        return notices

    @property
    def any(self) -> bool:
        """Return whether the last look has seen a wait."""
        return bool(self._known)

    def restart(self, now: int) -> None:
        """Forget the time before ``now``: the launch was stopped (Ctrl-Z), or debugged."""
        self._known.clear()
        self.begun = now

    def begin_again(self, looks: Iterable[Look]) -> None:
        """Count from here on what ranks do: a request for their stacks has made them write."""
        by_rank = {look.rank: look for look in looks}
        for known in self._known.values():
            known.first |= {rank: by_rank[rank] for rank in known.first.keys() & by_rank.keys()}

    def last_work(self) -> int | None:
        """Return since when no rank that is waited for has worked; None while none is."""
        idle = (known.idle_since for known in self._known.values() if known.first)
        return min(idle, default=None)

    def _ended(self, wait: Wait, by_rank: dict[int, Look]) -> None:
        known = self._known.pop(wait)
        end = min((look.at for look in by_rank.values()), default=known.since)
        self.longest = max(self.longest, end - known.since)

    def _note(self, wait: Wait, inside: list[Look], absent: list[Look]) -> _Known:
        since = max(self.begun, min(look.record.since for look in inside))
        known = self._known.setdefault(wait, _Known(since, {}))
        for look in absent:
            first = known.first.setdefault(look.rank, look)
            if works(first, look, known.since):
                known.worked = look.at
                known.first[look.rank] = look  # what it does from here on
        return known

    def _due_elsewhere(self, known: _Known, inside: Look) -> Notice | None:
        if not self.limit or known.said >= len(ELSEWHERE):
            return None
        waited = inside.at - known.since
        if waited < ELSEWHERE[known.said] * max(self.limit, PATIENCE * self.longest):
            return None
        return Notice((), waited // 1_000_000_000, ELSEWHERE[known.said] == WORKING)

    def _due(self, known: _Known, inside: Look, absent: list[Look]) -> Notice | None:
        if not self.limit or known.said >= 2:
            return None
        at = absent[0].at
        limit = max(self.limit, PATIENCE * self.longest) * (PATIENCE if known.said else 1)
        # What one rank makes for all of its host is meant to take its time.
        active = inside.record.operation == "once_per_host" or at - known.idle_since < limit
        if active and at - known.since < WORKING * limit:
            return None
        ranks = tuple(sorted(look.rank for look in absent))
        return Notice(ranks, (at - known.since) // 1_000_000_000, active)


@dataclass
class Idle:
    """Whether all ranks of this host have done nothing for longer than the limit."""

    limit: int
    _first: dict[int, Look] = field(default_factory=dict)
    """The look at each rank after which none has done anything."""
    _asked: int = 0

    def look(self, looks: Sequence[Look]) -> bool:
        """Return whether the stacks are worth a look now: twice at most while nothing is done."""
        first = self._first
        if first.keys() != {look.rank for look in looks} or any(
            look.record.since != first[look.rank].record.since
            or works(first[look.rank], look, first[look.rank].at)
            for look in looks
        ):
            self._first, self._asked = {look.rank: look for look in looks}, 0
            return False
        idle = min(look.at - first[look.rank].at for look in looks)
        due = self.limit * (PATIENCE if self._asked else 1)
        if not self.limit or self._asked >= 2 or idle < due:
            return False
        self._asked += 1
        return True

    def begin_again(self, looks: Iterable[Look]) -> None:
        """Count from here on what ranks do, as ``Waits.begin_again``, but not the time."""
        for look in looks:
            first = self._first.get(look.rank, look)
            self._first[look.rank] = replace(look, at=first.at)


def _waits(by_rank: dict[int, Look], others: bool) -> dict[Wait, tuple[list[Look], list[Look]]]:
    """Return (those inside, those that have not come) for each collective that is waited in.

    Of one in which ``others`` take part, on other hosts, it is not known here whether they have.
    """
    found: dict[Wait, list[Look]] = {}
    for look in by_rank.values():
        if look.record.inside:
            found.setdefault((look.record.group, look.record.number), []).append(look)
    waits = {}
    for wait, inside in found.items():
        members = inside[0].record.members or tuple(by_rank)
        come = {look.rank for look in inside}
        absent = [
            by_rank[rank]
            for rank in members
            if rank in by_rank and rank not in come and not by_rank[rank].record.has_left(*wait)
        ]
        if absent or (others and wait[0] == 0):
            waits[wait] = inside, absent
    return waits


def works(first: Look, now: Look, since: int) -> bool:
    """Return whether a rank has done something between two looks."""
    if now.record.beat > max(since, first.at) or now.moved > first.moved:
        return True
    return now.at > first.at and now.used - first.used >= BUSY * (now.at - first.at)
