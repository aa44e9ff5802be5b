"""Records every change of a replica's state, for a launch with ``events=``.

The records are made from the events that the failure rules get and the actions that they decide on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from xmp._processes.messages.connection import Connection
from xmp._processes.messages.launch import Events
from xmp._processes.messages.thread_replicas import plans_of
from xmp._processes.report.stack_texts import ranks
from xmp._processes.system.processes import signal_name
from xmp._rules.watch import Action
from xmp._rules.watch_events import Ended, Entered, Pause, Raised, Resume, Returned, WatchEvent

from .replica_handle import ReplicaHandle

__all__ = ["EventRecorder"]


class EventRecorder:
    """The events of one turn of the loop, collected and sent in order of time."""

    def __init__(self, replicas: Sequence[ReplicaHandle]) -> None:
        self._replicas = {replica.rank: replica for replica in replicas}
        self._phases: dict[int, str] = {}
        self._reported: set[int] = set()
        """The ranks that have reported the end of their function."""
        self._sent: set[tuple[int, str]] = set()
        """Rank and name of each signal that was sent."""
        self._waiting: list[tuple[Any, ...]] = []
        loaded = min(replica.timeline.loaded for replica in replicas)
        self._note("started", loaded, None, os.getpid())
        for replica in replicas:
            self._note_all("forked", replica.forked, replica)

    def _note(self, name: str, at: int, *rest: Any) -> None:
        self._waiting.append((name, at, *rest))

    def _note_all(self, name: str, at: int, replica: ReplicaHandle, *rest: Any) -> None:
        """Note the same event for all replicas of a process."""
        for plan in plans_of(replica.plan):
            self._note(name, at, plan.rank, replica.pid, *rest)

    def phase(self, replica: ReplicaHandle, name: str, at: int) -> None:
        """Note the phase that a replica has reported, unless it is the same as before."""
        if self._phases.get(replica.rank) != name:
            self._phases[replica.rank] = name
            self._note_all(name, at, replica)

    def waiting(self, words: str) -> None:
        """Note that ranks wait for others longer than usual."""
        self._note("waiting", time.monotonic_ns(), None, None, words)

    def take(self, event: WatchEvent, actions: Sequence[Action]) -> None:
        """Note an event that the failure rules got, and the actions that they decided on."""
        if isinstance(event, (Raised, Returned)):
            self._reported.add(event.rank)
        if isinstance(event, Ended):
            self._ended(event)
        elif isinstance(event, Raised):
            replica = self._replicas[event.rank]
            failing_rank = replica.failure.rank if replica.failure is not None else event.rank
            self._note("raised", event.at, failing_rank, replica.pid, event.words)
        elif isinstance(event, (Entered, Returned)):
            name = "running" if isinstance(event, Entered) else "returned"
            self._note_all(name, event.at, self._replicas[event.rank])
        elif isinstance(event, (Pause, Resume)):
            name = "paused" if isinstance(event, Pause) else "resumed"
            self._note(name, event.at, None, None)
        for action in actions:
            if action.name.startswith("SIG") and action.ranks:
                self._signalled(action)

    def _ended(self, event: Ended) -> None:
        replica = self._replicas[event.rank]
        if event.signal:
            name = signal_name(event.signal)
            what = "stopped" if (event.rank, name) in self._sent else "died"
            self._note_all(what, event.at, replica, "", None, name)
        else:
            expected = event.exit_code == 0 or event.rank in self._reported
            what = "exited" if expected else "died"
            self._note_all(what, event.at, replica, "", event.exit_code)

    def _signalled(self, action: Action) -> None:
        self._sent |= {(rank, action.name) for rank in action.ranks}
        receivers = [
            plan.rank for rank in action.ranks for plan in plans_of(self._replicas[rank].plan)
        ]
        words = f"{action.name} to {ranks(receivers)}"
        self._note("stopping", time.monotonic_ns(), None, None, words)

    def post(self, connection: Connection) -> None:
        if self._waiting:
            records, self._waiting = _in_order(self._waiting), []
            connection.post(Events(records))


def _in_order(records: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the records in order of time.

    Some times are the replica's own, others those at which its message came. So a record of a
    replica is dated no later than the ones that follow it.
    """
    latest: dict[int | None, int] = {}
    for number in reversed(range(len(records))):
        name, at, rank, *rest = records[number]
        at = latest[rank] = min(at, latest.get(rank, at))
        records[number] = (name, at, rank, *rest)
    return sorted(records, key=lambda each: each[1])
