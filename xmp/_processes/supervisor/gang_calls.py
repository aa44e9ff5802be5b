"""The calls of a gang after the first one, in the supervisor: their beginnings and their ends.

A call has its own failure rules (a ``Watch``), shared values, vote and meetings; the processes, the
connections and the records are those of the gang. What the launcher sends for the replicas is
passed on unopened. Imported for gangs alone: a module that a template has loaded costs every
replica pages.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from xmp._os import proc
from xmp._processes.messages import launch
from xmp._processes.messages import replica as messages
from xmp._processes.messages.catalog import Handlers
from xmp._processes.messages.plain_format import Malformed, encoded
from xmp._processes.messages.untrusted import Arrived
from xmp._processes.system.descriptors import close_all
from xmp._rules.watch_events import AtPost, CallOff, Entered, Leave, Stuck
from xmp._words.types import Limits

from .replica_handle import ReplicaHandle

if TYPE_CHECKING:
    from .hang_watch import HangWatch
    from .monitor import Monitor

__all__ = ["GangCalls"]

_STUCK_AFTER = 1_200_000_000
"""Nanoseconds after SIGINT in which a rank has gone on, unless native code blocks it."""
_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_BUSY = 0.2
"""The part of a core above which a rank works, and may still come back."""


class GangCalls:
    """The calls of one gang; the first one, number 0, came with the order."""

    def __init__(self, monitor: Monitor, hangs: HangWatch) -> None:
        self._monitor = monitor
        self._hangs = hangs
        self._number = 0
        self._over = False
        """True: the call is over, and its output is still being passed on."""
        self._results: list[tuple[int, bytes | None, int]] = []
        """Small results, which travel together: rank, data, size."""
        self.due: int | None = None
        """The time of the look for blocked ranks, in monotonic nanoseconds; None: no look."""
        self._recalled: dict[int, tuple[str, int]] = {}
        """The stack and the processor time of each rank when it got SIGINT."""

    def add_to(
        self, requests: Handlers[[list[int]]], reports: Handlers[[ReplicaHandle, Arrived]]
    ) -> None:
        """Add the handlers of the launcher's requests and of the replicas' reports."""
        requests.on(launch.RunCall, self._run)
        requests.on(launch.EndCall, lambda message, _: self._end(message.votes))
        requests.on(launch.LeavePosts, lambda *_: self._leave())
        reports.on(messages.AtPost, self._at_post)

    # --- one call ------------------------------------------------------------------------------

    def _run(self, message: launch.RunCall, descriptors: list[int]) -> None:
        monitor, now = self._monitor, time.monotonic_ns()
        if monitor.watch.phase != "over":  # a replica has just died: the launcher is told so
            close_all(descriptors)
            return
        limits = Limits(total=message.total or None, hang=message.hang or None)
        self._number, self._recalled, self._results = message.number, {}, []
        monitor.begin_call(limits, message.called)
        self._hangs.begin_call(now, message.hang)
        data = encoded(message)
        for replica in monitor.replicas:
            replica.connection.post_encoded(data, descriptors)
            monitor.feed(Entered(replica.rank, now))
        close_all(descriptors)

    def _at_post(self, message: messages.AtPost, replica: ReplicaHandle, _: Arrived) -> None:
        if message.number != self._number:
            raise Malformed(f"it is done with call {message.number}, and this is {self._number}")
        self._monitor.feed(AtPost(replica.rank, time.monotonic_ns()))

    def holds(self, rank: int, data: bytes | None, size: int) -> bool:
        """Keep a small result until the call is over. Return False for others."""
        if not self._number or (data is None and size):
            return False
        self._results.append((rank, data, size))
        return True

    def take_results(self) -> list[tuple[int, bytes | None, int]]:
        """Return the results that are kept, and keep them no longer."""
        results, self._results = self._results, []
        return results

    def is_over(self) -> None:
        """Note that all ranks are at their posts."""
        self._over, self.due = True, None
        self._monitor.pump.hurry([each for r in self._monitor.replicas for each in r.sources])

    def report(self) -> None:
        """Report the end of the call, once what the replicas have written has been passed on."""
        monitor = self._monitor
        if not self._over or monitor.pump.waiting or monitor.watch.phase != "over":
            return
        self._over = False
        done = monitor.verdict()
        monitor.rest()
        monitor.post_events()
        over = launch.CallOver(self._number, self.take_results(), *done)
        monitor.connection.post(over)

    # --- endings -------------------------------------------------------------------------------

    def _end(self, votes: bool) -> None:
        """End the call: by the vote on ``preempted()``, if replicas take part in it, or SIGINT."""
        monitor = self._monitor
        agreed = votes and monitor.vote is not None and monitor.vote.begin()
        monitor.connection.post(launch.PreemptAnswer(agreed))
        if not agreed:
            monitor.feed(CallOff(time.monotonic_ns()))

    def _leave(self) -> None:
        monitor = self._monitor
        for replica in monitor.replicas:
            replica.returned = True  # as if from its last call: nothing more is expected of it
            replica.connection.post(launch.LeavePosts())
        monitor.feed(Leave(time.monotonic_ns()))

    def recalled(self, ranks: tuple[int, ...], stacks: dict[int, str]) -> None:
        """Note where these ranks are, which get SIGINT now."""
        self.due = time.monotonic_ns() + _STUCK_AFTER
        self._recalled = {
            replica.rank: (stacks.get(replica.rank, ""), _cpu_time(replica.pid))
            for replica in self._monitor.replicas
            if replica.rank in ranks
        }

    def look(self, now: int) -> None:
        """End the gang if a rank that got SIGINT stands where it stood, and does not work."""
        if self.due is None or now < self.due:
            return
        self.due = None
        monitor = self._monitor
        live = monitor.watch.live
        if monitor.watch.phase != "recalling" or not live:
            return
        stacks = monitor.take_stacks(live)
        for replica in monitor.replicas:
            before, used = self._recalled.get(replica.rank, ("", 0))
            busy = (_cpu_time(replica.pid) - used) / _STUCK_AFTER > _BUSY
            same = bool(before) and before == stacks.get(replica.rank)
            if replica.rank in live and same and not busy:
                monitor.feed(Stuck(now))
                return


def _cpu_time(pid: int) -> int:
    """Return the processor time of a process in nanoseconds."""
    return proc.ticks(pid)[0] * _TICK
