"""The supervisor's loop: events of the replicas and the launcher in, signals and reports out.

Everything waits in one selector. What to do is decided by ``_watch``; this module carries it out.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from xmp._events import (
    Ended,
    Entered,
    Event,
    Interrupt,
    Kill,
    Pause,
    Progress,
    Raised,
    Resume,
    Returned,
    Stop,
    Tick,
)
from xmp._limits import SAY_AFTER
from xmp._types import Limits
from xmp._watch import Action, Watch

from . import family, kernel, stacks
from .account import Timeline
from .flow import Flow
from .loop import Loop
from .members import Member, Shares
from .order import Order
from .output import Outlets
from .wire import Closed, Wire

if TYPE_CHECKING:
    from .debugging import Debugging
    from .herald import Herald
    from .preempting import Agreement
    from .pulse import Pulse

__all__ = ["Gang"]

_ASKED: dict[str, Callable[[int], Event]] = {"interrupt": Interrupt, "stop": Stop, "kill": Kill}
_PAUSES: dict[str, tuple[int, Callable[[int], Event]]] = {
    "pause": (signal.SIGSTOP, Pause),
    "resume": (signal.SIGCONT, Resume),
}


class Gang:
    """All replicas of one launch on this host, from the last fork to the last report."""

    def __init__(
        self,
        order: Order,
        members: list[Member],
        wire: Wire,
        lifeline: int,
        wakeup: int,
        outlets: Outlets,
        pulse: Pulse | None,
    ) -> None:
        self._order = order
        self._members = members
        self._by_pid = {member.pid: member for member in members}
        self._wire = wire
        self._wakeup = wakeup
        self._errors = outlets.errors
        self._shares = Shares(order.host.replicas)
        self._pulse = pulse
        self._watch = Watch(
            [member.rank for member in members],
            int(order.grace * 1e9),
            order.limits or Limits(),
            order.called,
            time.monotonic_ns(),
        )
        self._agreement: Agreement | None = None
        self._stacks: dict[int, str] = {}
        self._debugging: Debugging | None = None
        self._ending = False
        self._loop = Loop()
        self._herald = self._make_herald() if order.told else None
        self._flow = Flow(self._loop, outlets.sinks)
        self._loop.listen(wire.fileno(), self._hear_launcher)
        self._loop.listen(lifeline, self._launcher_gone)
        self._loop.listen(wakeup, self._woken)
        launcher = kernel.open_pidfd(order.state.pid)
        if launcher is not None:
            self._loop.listen(launcher, self._launcher_gone)
        for member in members:
            self._loop.listen(member.wire.fileno(), partial(self._hear, member))
            for source in member.sources:
                self._flow.add(source)

    def _make_herald(self) -> Herald:
        from .herald import Herald  # what a template has loaded costs every replica pages

        return Herald(self._members)

    def run(self) -> None:
        """Handle events until every replica has ended and everything has been told."""
        self._reap()
        self._write_out()
        while self._watch.phase != "done" or self._flow.waiting:
            self._loop.turn(self._patience())
            now = time.monotonic_ns()
            due = self._watch.deadline
            if self._pulse is not None and due is not None and now >= due:
                self._feel(self._pulse)
            self._feed(Tick(now))
            self._write_out()
        self._finish()

    # --- the loop ------------------------------------------------------------------------------

    def _patience(self) -> float | None:
        deadline = self._watch.deadline
        return None if deadline is None else max(0.0, (deadline - time.monotonic_ns()) / 1e9)

    def _feel(self, pulse: Pulse) -> None:
        """Something is due: who has got on meanwhile?"""
        for member in self._members:
            at = 0 if member.ended else pulse.last(member.plan.local_rank)
            if at:
                self._feed(Progress(member.rank, at))

    def _write_out(self) -> None:
        """Send what the receivers take now; be woken when they take more."""
        if self._herald is not None:
            self._herald.send(self._wire)
        try:
            wants = not self._wire.flush()
        except Closed:
            wants = False  # the lifeline tells what that means
        self._loop.wake_for_write(self._wire.fileno(), wants)
        for member in self._members:
            if not member.ended and member.wire.waiting:
                self._loop.wake_for_write(member.wire.fileno(), not member.flush())
        self._flow.write_out()

    # --- the launcher --------------------------------------------------------------------------

    def _hear_launcher(self) -> None:
        try:
            (name, *rest), descriptors = self._wire.recv()
        except Closed:
            self._launcher_gone()
            return
        if name == "debugging" and self._debugging is not None:
            self._debugging.told(descriptors, *rest)
            return
        if name == "stacks":
            self._wire.post(("stacks", self._take_stacks(self._watch.live)))
            return
        if name == "grace":
            self._watch.grace = int(rest[0] * 1e9)
            return
        if name == "preempt":
            self._preempt()
            return
        if name in _PAUSES:
            number, event = _PAUSES[name]
            for member in self._members:
                member.signal(number, group=True)
            self._feed(event(time.monotonic_ns()))
            return
        self._end(_ASKED[name](time.monotonic_ns()))

    def _end(self, event: Event) -> None:
        """Somebody wants the launch to end: no debugger holds it up."""
        self._ending = True
        if self._debugging is not None:
            self._debugging.end()
        self._feed(event)

    def _preempt(self) -> None:
        """The launcher has got SIGTERM: the replicas that ask for it agree, others get it too."""
        agreed = self._agreement is not None and self._agreement.begin()
        self._wire.post(("preempted", agreed))
        if not agreed:
            self._end(Stop(time.monotonic_ns()))

    def _launcher_gone(self) -> None:
        """Nobody is left to tell: end everything and go."""
        if self._order.phases and self._errors.terminal:
            from .screen import RESTORE  # it may have shown where the replicas are

            self._errors.put(RESTORE)
        for member in self._members:
            member.signal(signal.SIGKILL, group=True)
        family.end_descendants()
        for member in self._members:
            for source in member.sources:
                source.drain()  # into its log, if there is one
        os._exit(1)

    # --- the replicas --------------------------------------------------------------------------

    def _hear(self, member: Member) -> None:
        try:
            message, descriptors = member.wire.recv()
        except Closed:
            self._loop.forget(member.wire.fileno())
            return
        if not self._shares.handle(member, message, descriptors):
            getattr(self, f"_on_{message[0]}")(member, descriptors, *message[1:])

    def _on_entered(self, member: Member, _: list[int]) -> None:
        now = time.monotonic_ns()
        self._wire.post(("entered", member.rank, now))
        self._feed(Entered(member.rank, now))

    def _on_step(
        self, member: Member, _: list[int], asked: int, local_rank: int, count: int, wants: bool
    ) -> None:
        if self._agreement is None:
            from .preempting import Agreement  # most programs never ask

            self._agreement = Agreement()
        number = self._agreement.report(local_rank, count)
        member.wire.post((asked, number), [self._agreement.flag] if wants else [])

    def _on_last_step(self, member: Member, _: list[int], local_rank: int) -> None:
        """A replica that is a thread has ended; its process has not."""
        plans = (member.plan, *member.plan.mates)
        if self._agreement is not None:
            self._agreement.forget(*(plan for plan in plans if plan.local_rank == local_rank))

    def _on_phase(self, member: Member, _: list[int], name: str, at: int) -> None:
        if self._herald is not None:
            self._herald.phase(member, name, at)
        self._wire.post(("phase", member.rank, name))

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
        if self._agreement is not None:
            self._agreement.forget(member.plan, *member.plan.mates)
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
        self._feed(Raised(member.rank, at, f"{name}: {words}"))

    def _on_breakpoint(self, member: Member, descriptors: list[int], rank: int) -> None:
        if self._debugging is None:
            from .debugging import Debugging  # what a template has loaded costs every replica pages

            self._debugging = Debugging(
                self._loop, self._flow, self._errors, self._wire.post, self._feed
            )
            if self._ending:
                self._debugging.end()
        self._debugging.arrive(member, rank, *descriptors)

    # --- deaths --------------------------------------------------------------------------------

    def _woken(self) -> None:
        try:
            while len(os.read(self._wakeup, 4096)) == 4096:
                pass
        except BlockingIOError:
            pass
        self._reap()

    def _reap(self) -> None:
        while (pid := family.next_ended()) is not None:
            member = self._by_pid.get(pid)
            if member is not None and not member.ended:
                # The zombie still keeps its group's number: nobody else can have it yet.
                member.signal(signal.SIGKILL, group=True)
            try:
                _, status, usage = os.wait4(pid, 0)
            except ChildProcessError:
                continue
            if member is not None:
                self._ended(member, status, family.largest(usage))

    def _ended(self, member: Member, status: int, largest: int) -> None:
        now = time.monotonic_ns()
        while self._loop.listens(member.wire.fileno()) and member.wire.readable():
            self._hear(member)
        self._loop.forget(member.wire.fileno())
        for source in member.sources:
            self._flow.end(source)
        member.note_end(now, status)
        self._shares.forget(member)
        if self._agreement is not None:
            self._agreement.forget(member.plan, *member.plan.mates)
        if self._debugging is not None:
            self._debugging.forget(member)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and not member.returned:  # os._exit(0): a success without a result
            self._wire.post(("returned", member.rank, None, 0, member.timeline, []))
        self._wire.post(("ended", member.rank, code, largest))
        words = member.sources[0].tail()
        self._feed(Ended(member.rank, now, max(code, 0), max(-code, 0), words))

    # --- carrying out --------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        actions = self._watch.feed(event)
        if self._herald is not None:
            self._herald.take(event, actions)
        for action in actions:
            self._do(action)
        if self._debugging is not None and self._watch.phase == "settling":
            self._debugging.failing()

    def _do(self, action: Action) -> None:
        chosen = [member for member in self._members if member.rank in action.ranks]
        if action.name == "stacks":
            self._stacks = self._take_stacks(action.ranks)
        elif action.name == "phases":
            self._say_phases(self._take_stacks(action.ranks))
        elif action.name == "SIGINT":
            quitters = self._debugging.quitters if self._debugging is not None else ()
            for member in chosen:
                if member not in quitters:
                    member.signal(signal.SIGINT)
        elif action.name == "SIGTERM":
            for member in chosen:
                member.signal(signal.SIGTERM)
                member.signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
        elif action.name == "SIGKILL":
            for member in chosen:
                member.signal(signal.SIGKILL, group=True)

    def _take_stacks(self, ranks: Collection[int]) -> dict[int, str]:
        return stacks.take(member for member in self._members if member.rank in ranks)

    def _say_phases(self, taken: dict[int, str]) -> None:
        waited, count = f"{SAY_AFTER / 1e9:g} s", f"{len(taken)} of {len(self._members)} replicas"
        places = "; ".join(stacks.phases(taken))
        line = f"xmp: after {waited} {count} have not reached the function: {places}\n"
        self._errors.put_lines(line.encode())  # with join=False no launcher may be listening

    def _finish(self) -> None:
        """Nothing is alive any more: tell the verdict."""
        family.end_descendants()
        verdict = self._watch.verdict()
        by_rank = {member.rank: member for member in self._members}
        failures = []
        for rank in verdict.order:
            failure = by_rank[rank].fail(kind="signal")
            failure.label = verdict.labels[rank]
            by_rank[rank].tell_last_words(failure, self._stacks.get(rank, ""))
            failures.append(failure)
        if self._herald is not None:
            self._herald.send(self._wire)
        self._wire.send(("done", verdict, failures, self._stacks))
