"""Collectives with a time limit: replicas meet here before they move data.

The supervisor decides alone, and once for each collective, whether all have come. So all ranks of a
collective raise, or none does, however close the last one comes to the limit; and a collective that
has failed has moved nothing, so that the group stays usable. A rank that comes late gets the same
answer as those that have given up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from xmp._processes.messages.plain_format import Malformed
from xmp._processes.messages.replica import CallOff, Meet, Met
from xmp._words.record import have_not_come

from .heard_voices import HeardVoice

__all__ = ["Meetings"]

_MOST_DECIDED = 256
"""The most failed meetings that are kept for ranks that may still come; the oldest are dropped."""


@dataclass
class _Meeting:
    members: frozenset[int]
    due: int
    come: dict[int, HeardVoice] = field(default_factory=dict)
    answer: Met | None = None


class Meetings:
    """The meetings of one host's replicas, by key."""

    def __init__(
        self, first_rank: int, local_ranks: Collection[int], whereabouts: Callable[[], str]
    ) -> None:
        """Begin without any.

        Args:
            first_rank: the global rank of local rank 0.
            local_ranks: all replicas of this host.
            whereabouts: returns in a sentence which ranks the others wait for, or nothing.
        """
        self._first = first_rank
        self._all = frozenset(local_ranks)
        self._whereabouts = whereabouts
        self._open: dict[str, _Meeting] = {}
        self._off: dict[str, tuple[int, str]] = {}
        """Local rank and reason of a refusal, for the ranks that have yet to come."""
        self._left: set[int] = set()
        self._paused_at = 0

    def meet(self, message: Meet, voice: HeardVoice, now: int) -> None:
        """Answer when all have come, or when the limit has passed."""
        members = frozenset(message.local_ranks)
        if not members <= self._all or voice.local_rank not in members:
            raise Malformed(f"local rank {voice.local_rank} meets {sorted(members)[:8]}")
        if any(voice in each.come.values() for each in self._open.values() if not each.answer):
            raise Malformed("it waits in another meeting")
        due = now + message.nanoseconds
        meeting = self._open.setdefault(message.key, _Meeting(members, due))
        meeting.come[voice.local_rank] = voice
        meeting.due = min(meeting.due, due)
        by, words = self._off.get(message.key, (-1, ""))
        if meeting.answer is None and by in members:
            meeting.answer = Met(words)
        if meeting.answer is not None:
            voice.answer(meeting.answer)
            if meeting.come.keys() >= meeting.members:
                del self._open[message.key]
            return
        self._check(message.key, meeting)

    def call_off(self, message: CallOff, voice: HeardVoice) -> None:
        """Answer those that wait in this meeting, or will: a member refuses it."""
        self._off[message.key] = voice.local_rank, message.words
        while len(self._off) > _MOST_DECIDED:
            del self._off[next(iter(self._off))]
        meeting = self._open.get(message.key)
        if meeting is not None and meeting.answer is None and voice.local_rank in meeting.members:
            self._answer(message.key, meeting, message.words)

    def due(self) -> int | None:
        """Return when the next limit passes; None: there is none, or the launch is paused."""
        waiting = [each.due for each in self._open.values() if each.answer is None]
        return None if self._paused_at or not waiting else min(waiting)

    def look(self, now: int, paused: bool) -> None:
        """End the meetings whose time is up. The time of a pause does not count."""
        if paused:
            self._paused_at = self._paused_at or now
            return
        if self._paused_at:
            for meeting in self._open.values():
                meeting.due += now - self._paused_at
            self._paused_at = 0
        for key, meeting in [*self._open.items()]:
            if meeting.answer is None and now >= meeting.due:
                self._fail(key, meeting)

    def leave(self, *local_ranks: int) -> None:
        """Note that these replicas have left their function: they come to no meeting."""
        self._left.update(local_ranks)
        for key, meeting in [*self._open.items()]:
            if meeting.answer is None:
                self._check(key, meeting)

    def forget(self, voice: HeardVoice) -> None:
        """Forget a closed voice: its replica was interrupted, and has not come."""
        for meeting in self._open.values():
            for local_rank, its in [*meeting.come.items()]:
                if its is voice:
                    del meeting.come[local_rank]

    def _check(self, key: str, meeting: _Meeting) -> None:
        """Answer if all have come, or if one never will."""
        absent = meeting.members - meeting.come.keys()
        if not absent:
            self._answer(key, meeting, "")
        elif absent & self._left:
            self._fail(key, meeting)

    def _fail(self, key: str, meeting: _Meeting) -> None:
        absent = meeting.members - meeting.come.keys()
        # Others are on their way, perhaps, but those that have left their function never come.
        words = have_not_come([self._first + each for each in absent & self._left or absent])
        found = self._whereabouts()
        if not found.startswith(words):  # another wait may be the cause of this one
            found = f"{words}. {found}" if found else words
        self._answer(key, meeting, found)

    def _answer(self, key: str, meeting: _Meeting, words: str) -> None:
        """Answer all that have come. Keep a failure for those that have not."""
        meeting.answer = Met(words)
        for voice in meeting.come.values():
            voice.answer(meeting.answer)
        if not words or meeting.come.keys() >= meeting.members:
            del self._open[key]
        decided = [key for key, each in self._open.items() if each.answer is not None]
        for old in decided[:-_MOST_DECIDED]:
            del self._open[old]
