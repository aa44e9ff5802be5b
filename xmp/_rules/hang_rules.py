"""Which rank the others wait for: compares the places of all ranks. Pure, like ``watch``.

A rank *waits* for others if its record says that it is inside a collective, or its stack that it is
in one of torch's or JAX's. It waits for those of the collective's ranks that have not come. At the
end of such waits are the *suspects*: ranks that others wait for, and that wait for none themselves.

- Where a rank has not come, it is named, and what it does instead.
- Where each rank waits in some collective, but not in the same, both sides are told and none is
  named: which of them is wrong, only the program's author knows. So it is where some wait for their
  device, as a backward pass does that reduces gradients.
- Where no rank is known to wait, the ranks that stand elsewhere than most, or that do not wait for
  their device as the others do, *may* be the reason. Such a finding is not ``sure``.
- Where all stand at the same place, nothing tells them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xmp._words.record import RETURNED, Frame, RankPlace, have_not_come, ranks

from .frame_meanings import COLLECTIVE, DEVICE, MESSAGE, meaning

__all__ = ["Finding", "judge"]

STOPPED = "stopped"
"""What the kernel says of a process after SIGSTOP or Ctrl-Z."""
SOURCE = "broadcast"
"""The operation that its source leaves before the others have come."""
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Finding:
    """Who is waited for, as far as the places of the ranks tell."""

    suspects: tuple[int, ...] = ()
    """The ranks that the others wait for; empty: none can be named."""
    sure: bool = True
    words: str = ""
    """One sentence, or empty if there is nothing to say."""
    tells: bool = True
    """Whether something tells the ranks apart."""
    waits: bool = True
    """True: a rank is known to wait for others."""


@dataclass(frozen=True)
class _Wait:
    """What a rank waits in; equal for ranks that wait for each other."""

    kind: str
    name: str
    site: str = field(compare=False)
    """The user's line. Branches of a program may call one collective in several lines."""
    group: int = 0
    members: tuple[int, ...] = ()
    """The group's ranks, if they are not all."""
    number: int = 0
    """0: known by the stack alone."""
    detail: str = ""
    line: str = ""
    """The line once more, where nothing else tells two calls apart: without a record."""


def judge(places: Sequence[RankPlace]) -> Finding:
    """Return who is waited for; ``places`` are of all ranks."""
    by_rank = {place.rank: place for place in places}
    waits = {rank: _wait_of(place) for rank, place in by_rank.items()}
    met = {rank: wait for rank, wait in waits.items() if wait and wait.kind != DEVICE}
    if not met:
        return _without_meeting(by_rank, waits)
    stopped = [rank for rank in met if by_rank[rank].doing == STOPPED]
    if stopped and len(stopped) < len(met):
        return _stopped(met, stopped)
    needed = {rank: _missing(by_rank, met, rank) for rank in met}
    absent = sorted(set().union(*needed.values()) - met.keys())
    if absent:
        # Those that wait for their device may wait for another's part in it.
        suspects = [
            rank for rank in absent if waits[rank] is None and not by_rank[rank].thread_meets
        ]
        if not suspects:
            known = {rank: wait for rank, wait in waits.items() if wait}
            return Finding(words=f"the ranks wait in different calls: {_sides(known)}")
        waiting = [rank for rank in met if not needed[rank].isdisjoint(suspects)]
        return _absent(by_rank, met, suspects, waiting)
    if any(needed.values()):
        return Finding(words=f"the ranks wait in different calls: {_sides(met)}")
    return Finding(words=f"nothing tells the ranks apart: {_sides(met)}", tells=False)


def _wait_of(place: RankPlace) -> _Wait | None:
    """Return what a rank waits in; None if it is not known to wait."""
    record = place.record
    if place.ended:
        return None
    if record.inside:
        return _Wait(
            COLLECTIVE, record.operation, _short(record.site), record.group, record.members,
            record.number, record.detail,
        )  # fmt: skip
    inner = place.frames
    if place.user is not None and place.user in inner:
        inner = inner[: inner.index(place.user)]
    kind, name = meaning(inner)
    if not kind:
        return None
    site = _at(place.user) if place.user else ""
    return _Wait(kind, name, site, line=site)


def _missing(by_rank: Mapping[int, RankPlace], met: Mapping[int, _Wait], rank: int) -> set[int]:
    """Return the ranks that have not come to where this one waits."""
    wait, record = met[rank], by_rank[rank].record
    if wait.kind == MESSAGE:
        return set()
    members = record.members if record.inside and record.members else tuple(by_rank)
    missing = {other for other in members if met.get(other) != wait} - {rank}
    if not record.inside:
        return missing
    known = {other: by_rank[other].record for other in missing if other in by_rank}
    # Its function has returned, and only the source of a broadcast need not wait for the others.
    gone = {other for other in known if by_rank[other].ended and known[other].operation != SOURCE}
    left = {other for other, its in known.items() if its.has_left(record.group, record.number)}
    return missing - (left - gone)


def _absent(
    by_rank: Mapping[int, RankPlace],
    met: Mapping[int, _Wait],
    suspects: Sequence[int],
    waiting: Sequence[int],
) -> Finding:
    recorded = [by_rank[rank] for rank in waiting if by_rank[rank].record.inside]
    longest = max((place.at - place.record.since for place in recorded), default=0)
    long = f" ({_seconds(longest)} s)" if recorded else ""
    names = Counter((met[rank].name, met[rank].site) for rank in waiting)
    (name, site), _ = names.most_common(1)[0]
    waiting = [rank for rank in waiting if (met[rank].name, met[rank].site) == (name, site)]
    where = f"the {name} at {site}" if site else f"the {name}"
    wait = "wait" if len(waiting) > 1 else "waits"
    # Without a record the group is not known: its other ranks may be elsewhere with good reason.
    living = sum(not place.ended for place in by_rank.values())
    sure = bool(recorded) or 2 * len(waiting) > living or len(by_rank) == 2
    who = have_not_come(suspects) if sure else f"{ranks(suspects)} may not have come"
    words = (
        f"{who} to {where}, where {ranks(waiting)} {wait}{long}: {_whereabouts(by_rank, suspects)}"
    )
    return Finding(tuple(suspects), sure, words)


def _stopped(met: Mapping[int, _Wait], stopped: Sequence[int]) -> Finding:
    others = [rank for rank in met if rank not in stopped]
    verb = "are" if len(stopped) > 1 else "is"
    words = (
        f"{ranks(stopped)} {verb} stopped by a signal in {met[stopped[0]].name}, while "
        f"{ranks(others)} {_verb(others, 'wait')}: {_sides(met)}"
    )
    return Finding(tuple(stopped), words=words)


def _without_meeting(
    by_rank: Mapping[int, RankPlace], waits: Mapping[int, _Wait | None]
) -> Finding:
    living = {rank: place for rank, place in by_rank.items() if not place.ended}
    device = [rank for rank in living if waits[rank] is not None]
    if device and len(device) < len(living):
        others = sorted(living.keys() - set(device))
        return _perhaps(by_rank, others, f"{ranks(device)} {_verb(device, 'wait')} for the device")
    tops = {rank: place.frames[0] for rank, place in living.items() if place.frames}
    counted = Counter(tops.values()).most_common(1)
    if not counted or len(tops) < 2:
        return Finding()
    top, most = counted[0]
    if most == len(living):
        words = "nothing tells the ranks apart: all that run are at one place"
        return Finding(words=words, tells=False, waits=False)
    if 2 * most <= len(living) or most < 2:
        return Finding()
    at = [rank for rank in living if tops.get(rank) == top]
    others = sorted(living.keys() - set(at))
    where = _place(living[at[0]].user or top)
    return _perhaps(by_rank, others, f"{ranks(at)} {_verb(at, 'stand')} in {where}")


def _perhaps(by_rank: Mapping[int, RankPlace], suspects: Sequence[int], why: str) -> Finding:
    words = f"{ranks(suspects)} may be waited for, since {why}: {_whereabouts(by_rank, suspects)}"
    return Finding(tuple(suspects), False, words, waits=False)


# --- in words -------------------------------------------------------------------------------------


def _whereabouts(by_rank: Mapping[int, RankPlace], suspects: Sequence[int]) -> str:
    """Return where the suspects are, one text for those at one place."""
    groups: dict[str, list[int]] = {}
    for rank in suspects:
        groups.setdefault(_where(by_rank[rank]), []).append(rank)
    clauses = {_clause(by_rank[group[0]], where, group): group for where, group in groups.items()}
    if len(clauses) == 1:
        return next(iter(clauses))
    return "; ".join(f"{ranks(group)}: {clause}" for clause, group in clauses.items())


def _clause(place: RankPlace, where: str, group: Sequence[int]) -> str:
    many = len(group) > 1
    if place.ended == RETURNED:
        return "their functions have returned" if many else "its function has returned"
    if place.ended:
        return "their processes have ended" if many else "its process has ended"
    return f"they are {where}" if many else f"it is {where}"


def _where(place: RankPlace) -> str:
    doing = f", {place.doing}" if place.doing else ""
    frame = place.user or (place.frames[0] if place.frames else None)
    if place.ended or frame is None:
        return f"{place.ended}at an unknown place{doing}"
    return f"in {_place(frame)}{doing}"


def _seconds(nanoseconds: int) -> str:
    seconds = nanoseconds / _SECOND
    return f"{seconds:.1f}" if seconds < 1 else f"{seconds:.0f}"


def _place(frame: Frame) -> str:
    return f"{frame.function}() at {_at(frame)}"


def _at(frame: Frame) -> str:
    return _short(f"{frame.file}:{frame.line}")


def _short(site: str) -> str:
    return site.rpartition("/")[2]


def _sides(met: Mapping[int, _Wait]) -> str:
    sides: dict[str, list[int]] = {}
    numbered = len({wait.number for wait in met.values() if wait.number}) > 1
    for rank, wait in sorted(met.items()):
        parts = [
            f"{wait.name}({wait.detail})" if wait.detail else wait.name,
            f" of {ranks(wait.members)}" if wait.members else "",
            f" at {wait.site}" if wait.site else "",
            f" (its collective {wait.number})" if numbered and wait.number else "",
        ]
        sides.setdefault("".join(parts), []).append(rank)
    return ", ".join(f"{ranks(group)} in {words}" for words, group in sides.items())


def _verb(group: Sequence[int], verb: str) -> str:
    return verb if len(group) > 1 else f"{verb}s"
