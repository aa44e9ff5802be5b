"""Looks at the records a few times within the limit, and says unasked who has not come.

A look reads shared memory and ``/proc``: some 250 µs a rank, every 15 seconds, and every five while
ranks wait for others. The replicas' stacks are taken only for a notice, at most twice a wait: the
signal for them interrupts system calls of C libraries.

Where a driver hears of several hosts, it is asked to say who is late: it alone has all records.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xmp._os import proc
from xmp._processes.messages.launch import WaitedLong
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.system import processes
from xmp._processes.system.records import Records
from xmp._rules.notices import LOOKS, LOOKS_AT_REST, Idle, Look, Notice, Waits, limit_of, works

if TYPE_CHECKING:
    from .monitor import Monitor
    from .replica_handle import ReplicaHandle

__all__ = ["HangWatch"]

_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_LATE = 2
"""How many periods late a look is where the launch was stopped or debugged meanwhile."""
_MANY = 64
"""Above so many ranks, looks are rarer in proportion."""


class HangWatch:
    """The waits of one launch on this host."""

    def __init__(self, monitor: Monitor, records: Records, order: LaunchOrder) -> None:
        self._monitor = monitor
        self._records = records
        notice = limit_of(os.environ)
        self._waits, self._idle = Waits(notice, others=order.for_driver), Idle(notice)
        self._for_driver = order.for_driver
        self._last: dict[int, Look] = {}
        self._period = self._periods(order.settings.hang)
        self.due: int | None = time.monotonic_ns() + self._period if self._period else None
        """When to look next; None: never."""

    def begin_call(self, now: int, hang: int) -> None:
        """Look again from now on: a gang has a new call, with this ``hang_timeout``."""
        self._period = self._periods(hang)
        if self._period:
            self._waits.restart(now)
            self._idle, self.due = Idle(self._idle.limit), now + self._period

    def _periods(self, hang: int) -> int:
        """Return the time between two looks in nanoseconds; 0: none is needed."""
        limits = [limit for limit in (self._idle.limit, hang) if limit]
        alone = self._records.count < 2 and not self._for_driver
        many = max(1, self._records.count // _MANY)
        return 0 if alone or not limits else many * min(limits) // LOOKS

    def look(self, now: int) -> None:
        """Look at all ranks, and say what is worth a word."""
        if self.due is None:
            return
        if now > self.due + _LATE * self._period:
            self._waits.restart(now)
            self._idle = Idle(self._idle.limit)
        if self._monitor.watch.phase != "running":
            self.due = None
            return
        looks = self._looks()
        notices = self._waits.look(looks)
        self.due = now + self._period * (1 if self._waits.any else LOOKS // LOOKS_AT_REST)
        if self._for_driver:
            self._note_work(looks)
            for each in notices:
                self._monitor.connection.post(WaitedLong(each.works))
            notices = []
        if notices or (self.last_work() is None and self._idle.look(looks)):
            self._say(notices)
            looks = self._looks()
            self._waits.begin_again(looks)
            self._idle.begin_again(looks)

    def _note_work(self, looks: Sequence[Look]) -> None:
        last, self._last = self._last, {look.rank: look for look in looks}
        self._monitor.working = frozenset(
            rank for rank, look in self._last.items()
            if rank in last and works(last[rank], look, last[rank].at)
        )  # fmt: skip

    def last_work(self) -> int | None:
        """Return since when no rank that others wait for has worked; None while none is."""
        return self._waits.last_work()

    def _looks(self) -> list[Look]:
        looks = []
        for replica in self._monitor.replicas:
            used, moved = _activity(replica)
            for rank, local_rank in zip(replica.ranks, replica.local_ranks, strict=True):
                record = self._records.read(local_rank)
                looks.append(Look(rank, record, time.monotonic_ns(), used, moved))
        return looks

    def _say(self, notices: Sequence[Notice]) -> None:
        """Say who is waited for; without a notice only if the stacks tell it."""
        # Imported here: a module that a template has loaded costs every replica pages.
        from xmp._processes.report.hang_texts import UNASKED, found, noticed

        monitor = self._monitor
        finding = found(monitor.where(), monitor.take_stacks(monitor.watch.live))
        words = noticed(finding, notices)
        if words:
            monitor.errors.put_lines(f"xmp: {words} {UNASKED}\n".encode())
            if monitor.recorder is not None:
                monitor.recorder.waiting(words)


def _activity(replica: ReplicaHandle) -> tuple[int, int]:
    """Return the processor time and the bytes moved of a replica and all that it has started."""
    used = moved = 0
    pids = [] if replica.ended else [replica.pid]
    while pids:
        pid = pids.pop()
        pids += processes.children(pid)
        used += sum(proc.ticks(pid)) * _TICK
        lines = (line.partition(":") for line in proc.text(f"/proc/{pid}/io").splitlines())
        moved += sum(int(value) for name, _, value in lines if name in ("rchar", "wchar"))
    return used, moved
