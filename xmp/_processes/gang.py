"""The supervisor's loop: events of the replicas and the launcher in, signals and reports out.

Everything waits in one selector. What to do is decided by ``_watch``; this module carries it out.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from xmp._watch import Action, Ended, Event, Interrupt, Kill, Raised, Returned, Stop, Tick, Watch

from . import family, kernel
from .account import Timeline
from .members import Member, Shares
from .order import Order
from .output import Sink
from .wire import Closed, Wire

__all__ = ["Gang"]

_ASKED: dict[str, Callable[[int], Event]] = {"interrupt": Interrupt, "stop": Stop, "kill": Kill}
_PAUSES = {"pause": signal.SIGSTOP, "resume": signal.SIGCONT}
_STACKS_WAIT = 0.5
_STACKS_STEP = 0.002


class Gang:
    """All replicas of one launch on this host, from the last fork to the last report."""

    def __init__(
        self,
        order: Order,
        members: list[Member],
        wire: Wire,
        lifeline: int,
        wakeup: int,
        sink: Sink,
    ) -> None:
        self._order = order
        self._members = members
        self._by_pid = {member.pid: member for member in members}
        self._wire = wire
        self._wakeup = wakeup
        self._sink = sink
        self._shares = Shares(order.host.replicas)
        self._watch = Watch([m.rank for m in members], int(order.grace * 1e9))
        self._stacks: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._writing: set[int] = set()
        self._paused: list[Member] = []
        self._listen(wire.fileno(), self._hear_launcher)
        self._listen(lifeline, self._launcher_gone)
        self._listen(wakeup, self._woken)
        launcher = kernel.open_pidfd(order.state.pid)
        if launcher is not None:
            self._listen(launcher, self._launcher_gone)
        for member in members:
            self._listen(member.wire.fileno(), partial(self._hear, member))
            self._listen(member.source.descriptor, partial(self._copy, member))

    def run(self) -> None:
        """Handle events until every replica has ended and everything has been told."""
        self._reap()
        self._write_out()
        while self._watch.phase != "done" or self._sink.waiting:
            for key, mask in self._selector.select(self._patience()):
                if mask & selectors.EVENT_READ and key.fd in self._handlers:
                    self._handlers[key.fd]()
            self._feed(Tick(time.monotonic_ns()))
            self._write_out()
        self._finish()

    # --- the selector --------------------------------------------------------------------------

    def _listen(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._selector.register(descriptor, selectors.EVENT_READ)

    def _forget(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._selector.unregister(descriptor)

    def _patience(self) -> float | None:
        deadline = self._watch.deadline
        return None if deadline is None else max(0.0, (deadline - time.monotonic_ns()) / 1e9)

    def _write_out(self) -> None:
        """Send what the receivers take now; be woken when they take more."""
        try:
            wants = not self._wire.flush()
        except Closed:
            wants = False  # the lifeline tells what that means
        self._wake_for_write(self._wire.fileno(), wants)
        for member in self._members:
            if not member.ended and member.wire.waiting:
                self._flush_member(member)
        self._sink.flush()
        if self._sink.pollable:
            self._wake_for_write(self._sink.descriptor, self._sink.waiting)
        if self._paused and not self._sink.full:
            self._resume()

    def _flush_member(self, member: Member) -> None:
        try:
            wants = not member.wire.flush()
        except Closed:
            wants = False  # it is ending; the wait status will say how
        self._wake_for_write(member.wire.fileno(), wants)

    def _wake_for_write(self, descriptor: int, wanted: bool) -> None:
        if wanted == (descriptor in self._writing):
            return
        reads = selectors.EVENT_READ if descriptor in self._handlers else 0
        if wanted:
            self._writing.add(descriptor)
            change = self._selector.modify if reads else self._selector.register
            change(descriptor, reads | selectors.EVENT_WRITE)
            return
        self._writing.discard(descriptor)
        if reads:
            self._selector.modify(descriptor, reads)
        else:
            self._selector.unregister(descriptor)

    # --- the launcher --------------------------------------------------------------------------

    def _hear_launcher(self) -> None:
        try:
            (name, *rest), _ = self._wire.recv()
        except Closed:
            self._launcher_gone()
            return
        if name == "stacks":
            self._wire.post(("stacks", self._take_stacks(self._watch.live)))
            return
        if name == "grace":
            self._watch.grace = int(rest[0] * 1e9)
            return
        if name in _PAUSES:
            for member in self._members:
                member.signal(_PAUSES[name], group=True)
            return
        self._feed(_ASKED[name](time.monotonic_ns()))

    def _launcher_gone(self) -> None:
        """Nobody is left to tell: end everything and go."""
        for member in self._members:
            member.signal(signal.SIGKILL, group=True)
        family.end_descendants()
        os._exit(1)

    # --- the replicas --------------------------------------------------------------------------

    def _copy(self, member: Member) -> None:
        if self._sink.full:
            # Replicas wait in their own write() until the launcher's stream has room again.
            self._paused = [m for m in self._members if m.source.descriptor in self._handlers]
            for other in self._paused:
                self._forget(other.source.descriptor)
        elif not member.source.copy():
            self._forget(member.source.descriptor)

    def _resume(self) -> None:
        paused, self._paused = self._paused, []
        for member in paused:
            if not member.ended:
                self._listen(member.source.descriptor, partial(self._copy, member))

    def _hear(self, member: Member) -> None:
        try:
            message, descriptors = member.wire.recv()
        except Closed:
            self._forget(member.wire.fileno())
            return
        if not self._shares.handle(member, message, descriptors):
            getattr(self, f"_on_{message[0]}")(member, descriptors, *message[1:])

    def _on_entered(self, member: Member, _: list[int]) -> None:
        member.entered = True
        self._wire.post(("entered", member.rank, time.monotonic_ns()))

    def _on_returned(
        self,
        member: Member,
        descriptors: list[int],
        at: int,
        data: bytes | None,
        size: int,
        timeline: Timeline,
        imported: list[str],
    ) -> None:
        member.returned, member.timeline = True, timeline
        self._wire.post(("returned", member.rank, data, size, timeline, imported), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._feed(Returned(member.rank, at))

    def _on_exit(
        self, member: Member, _: list[int], at: int, code: int, timeline: Timeline
    ) -> None:
        member.timeline = timeline
        if code == 0:
            member.returned = True
            self._wire.post(("returned", member.rank, None, 0, timeline, []))
            self._feed(Returned(member.rank, at))
        else:
            member.fail(kind="exit", at=at, exit_code=code)
            self._feed(Raised(member.rank, at, f"exit code {code}"))

    def _on_raised(
        self,
        member: Member,
        _: list[int],
        at: int,
        rank: int,
        name: str,
        words: str,
        text: str,
        pickled: bytes | None,
        interrupted: bool,
        timeline: Timeline,
    ) -> None:
        member.timeline = timeline
        failure = member.fail(rank, kind="interrupted" if interrupted else "raised", at=at)
        failure.error_type, failure.message, failure.traceback = name, words, text
        failure.pickled = pickled
        self._feed(Raised(member.rank, at, f"{name}: {words}", interrupted))

    # --- deaths --------------------------------------------------------------------------------

    def _woken(self) -> None:
        try:
            while len(os.read(self._wakeup, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass
        self._reap()

    def _reap(self) -> None:
        while (pid := _next_ended()) is not None:
            member = self._by_pid.get(pid)
            if member is not None and not member.ended:
                # The zombie still keeps its group's number: nobody else can have it yet.
                member.signal(signal.SIGKILL, group=True)
            try:
                _, status = os.waitpid(pid, 0)
            except ChildProcessError:
                continue
            if member is not None:
                self._ended(member, status)

    def _ended(self, member: Member, status: int) -> None:
        now = time.monotonic_ns()
        while member.wire.fileno() in self._handlers and member.wire.readable():
            self._hear(member)
        self._forget(member.wire.fileno())
        member.source.drain()
        self._forget(member.source.descriptor)
        member.note_end(now, status)
        self._shares.forget(member)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not member.returned:  # os._exit(0): a success without a result
            self._wire.post(("returned", member.rank, None, 0, member.timeline, []))
        self._wire.post(("ended", member.rank, code))
        words = member.source.tail()
        self._feed(Ended(member.rank, now, max(code, 0), max(-code, 0), words))

    # --- carrying out --------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        for action in self._watch.feed(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        chosen = [member for member in self._members if member.rank in action.ranks]
        if action.name == "stacks":
            self._stacks = self._take_stacks(action.ranks)
        elif action.name == "SIGINT":
            for member in chosen:
                member.signal(signal.SIGINT)
        elif action.name == "SIGTERM":
            for member in chosen:
                member.signal(signal.SIGTERM)
                member.signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
        elif action.name == "SIGKILL":
            for member in chosen:
                member.signal(signal.SIGKILL, group=True)

    def _take_stacks(self, ranks: Any) -> dict[int, str]:
        """The stacks of the living, within half a second.

        faulthandler writes them from a signal handler, in C, also while Python is stuck. Nothing
        says that a dump is complete: it is when the file has grown and then stays as it is.
        """
        asked = {m: m.ask_stacks() for m in self._members if m.rank in set(ranks) and not m.ended}
        sizes = dict.fromkeys(asked, -1)
        end = time.monotonic() + _STACKS_WAIT
        while time.monotonic() < end:
            now = {member: os.fstat(member.stacks).st_size for member in asked}
            if all(now[m] == sizes[m] and now[m] > asked[m] for m in asked):
                break
            sizes = now
            time.sleep(_STACKS_STEP)
        return {m.rank: m.read_stacks(start) or _from_proc(m.pid) for m, start in asked.items()}

    def _finish(self) -> None:
        """Nothing is alive any more: tell the verdict."""
        family.end_descendants()
        verdict = self._watch.verdict()
        by_rank = {member.rank: member for member in self._members}
        failures = []
        for rank in verdict.order:
            failure = by_rank[rank].fail(kind="signal")
            failure.label = verdict.labels[rank]
            failure.stderr = by_rank[rank].source.tail()
            failure.stacks = by_rank[rank].read_stacks()
            failures.append(failure)
        self._wire.send(("done", verdict, failures, self._stacks))


def _next_ended() -> int | None:
    """A child that has ended, not yet reaped."""
    if not hasattr(os, "waitid"):
        return _next_ended_without_waitid()
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _next_ended_without_waitid() -> int | None:
    for pid in family.children(os.getpid()):
        if family.is_zombie(pid):
            return pid
    return None


def _from_proc(pid: int) -> str:
    """What /proc says of a process that did not answer."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        with open(f"/proc/{pid}/wchan") as file:
            place = file.read().strip() or "?"
    except OSError:
        return "ended before it answered\n"
    words = {"T": "stopped", "t": "stopped by a debugger", "D": "in an uninterruptible call"}
    return f"no answer: {words.get(state, f'state {state}')}, kernel function {place}\n"
