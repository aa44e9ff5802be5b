"""Who the others wait for, from the places of all ranks and their stacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from xmp._rules.hang_rules import Finding, judge
from xmp._rules.notices import Notice
from xmp._words.record import Frame, RankPlace, ranks

from .short_text import library_of
from .stack_texts import frames_of, grouped

__all__ = ["UNASKED", "found", "living", "noticed", "noticed_over_hosts"]


UNASKED = "(XMP_HANG_NOTICE=0 for no such lines)"
"""The end of a line that is said unasked."""


_COLLECTIVES = "/xmp/_inside/collectives.py"


def found(places: Sequence[RankPlace], stacks: Mapping[int, str]) -> Finding:
    """Return who is waited for; nothing for a single rank."""
    if len(places) < 2:
        return Finding()
    return judge([_with_frames(place, stacks.get(place.rank, "")) for place in places])


def living(stacks: Mapping[int, str], places: Sequence[RankPlace]) -> str:
    """Return the text that is printed on request (Ctrl-\\)."""
    head = ["xmp: where the living replicas are:", found(places, stacks).words]
    return "\n".join([*filter(None, head), *grouped(stacks)])


def noticed_over_hosts(places: Sequence[RankPlace], stacks: Mapping[int, str], late: bool) -> str:
    """Return the line that is said unasked in a launch over hosts; empty if there is none to say.

    ``late``: name ranks even if they work.
    """
    finding = found(places, stacks)
    works = any(place.works for place in places if place.rank in finding.suspects)
    if works and not late:
        return ""
    return noticed(finding, [Notice(finding.suspects, 0, True)] if works else [])


def noticed(finding: Finding, notices: Sequence[Notice]) -> str:
    """Return what is said unasked; empty if there is nothing to say."""
    words = finding.words if finding.waits and (finding.suspects or finding.tells) else ""
    if not words:
        words = "; ".join(f"{ranks(each.absent)} waited for, {each.seconds} s" for each in notices)
    more = ", still working" if notices and all(each.works for each in notices) else ""
    return f"{words}{more}" if words else ""


def _with_frames(place: RankPlace, stack: str) -> RankPlace:
    frames = frames_of(stack)
    meets = not place.record.inside and _COLLECTIVES in stack
    return replace(place, frames=frames, user=_users(frames), thread_meets=meets)


def _users(frames: Iterable[Frame]) -> Frame | None:
    """Return the innermost frame that is neither a library's nor xmp's; None without one."""
    return next((frame for frame in frames if not library_of(frame.file)), None)
