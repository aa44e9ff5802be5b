"""What the supervisor tells of its replicas to a launcher that wants every change of state.

Made only where somebody asked: it hears what the failure rules are told, and what they decide.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from xmp._events import Ended, Entered, Event, Pause, Raised, Resume, Returned
from xmp._watch import Action

from .family import signal_name
from .members import Member
from .stacks import ranks
from .wire import Wire

__all__ = ["Herald"]

_PLAIN: dict[type, str] = {Entered: "running", Returned: "returned", Raised: "raised"}
_LAUNCH: dict[type, str] = {Pause: "paused", Resume: "resumed"}


class Herald:
    """Collects what happens in one turn of the loop and sends it in the order of time."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = {member.rank: member for member in members}
        self._phases: dict[int, str] = {}
        self._said: set[int] = set()
        """Who has told how the function ended."""
        self._sent: dict[int, set[int]] = {}
        """The signals that were sent to each rank."""
        self._waiting: list[tuple[Any, ...]] = []
        loaded = min(member.timeline.loaded for member in members)
        self._note("started", loaded, None, os.getpid())
        for member in members:
            self._tell("forked", member.forked, member)

    def _note(self, name: str, at: int, *rest: Any) -> None:
        self._waiting.append((name, at, *rest))

    def _tell(self, name: str, at: int, member: Member, *rest: Any) -> None:
        """The same happens to all replicas of a process."""
        for plan in (member.plan, *member.plan.mates):
            self._note(name, at, plan.rank, member.pid, *rest)

    def phase(self, member: Member, name: str, at: int) -> None:
        """A replica says what it begins; twice the same is no change."""
        if self._phases.get(member.rank) != name:
            self._phases[member.rank] = name
            self._tell(name, at, member)

    def take(self, event: Event, actions: Sequence[Action]) -> None:
        """Take in what the failure rules were told, and what they decided."""
        if isinstance(event, Ended):
            self._ended(event)
        elif isinstance(event, Raised):
            self._raised(event)
        elif type(event) in _PLAIN:
            if isinstance(event, Returned):
                self._said.add(event.rank)
            self._tell(_PLAIN[type(event)], event.at, self._members[event.rank])  # type: ignore[union-attr]
        elif type(event) in _LAUNCH:
            self._note(_LAUNCH[type(event)], event.at, None, None)
        for action in actions:
            if action.name.startswith("SIG") and action.ranks:
                self._signalled(action)

    def _raised(self, event: Raised) -> None:
        member = self._members[event.rank]
        self._said.add(event.rank)
        speaker = member.failure.rank if member.failure is not None else event.rank
        self._note("raised", event.at, speaker, member.pid, event.words)

    def _ended(self, event: Ended) -> None:
        member = self._members[event.rank]
        if event.signal:
            asked = event.signal in self._sent.get(event.rank, ())
            name = "stopped" if asked else "died"
            self._tell(name, event.at, member, "", None, signal_name(event.signal))
            return
        expected = event.exit_code == 0 or event.rank in self._said
        name = "exited" if expected else "died"
        self._tell(name, event.at, member, "", event.exit_code)

    def _signalled(self, action: Action) -> None:
        for rank in action.ranks:
            self._sent.setdefault(rank, set()).add(getattr(signal, action.name))
        everybody = [
            plan.rank
            for rank in action.ranks
            for plan in (self._members[rank].plan, *self._members[rank].plan.mates)
        ]
        words = f"{action.name} to {ranks(everybody)}"
        self._note("stopping", time.monotonic_ns(), None, None, words)

    def send(self, wire: Wire) -> None:
        """Post what has been collected."""
        if self._waiting:
            told, self._waiting = _in_order(self._waiting), []
            wire.post(("events", told))


def _in_order(told: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """By time. Some times are the replicas' own, others of when we heard: what a replica told
    earlier was not later."""
    latest: dict[int | None, int] = {}
    for number in reversed(range(len(told))):
        name, at, rank, *rest = told[number]
        at = latest[rank] = min(at, latest.get(rank, at))
        told[number] = (name, at, rank, *rest)
    return sorted(told, key=lambda each: each[1])
