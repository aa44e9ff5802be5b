"""The state of the launch in the supervisor: carries out what ``watch`` decides upon each event."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from xmp._processes.messages import launch
from xmp._processes.messages.connection import Connection
from xmp._processes.messages.order import MALFORMED, LaunchOrder
from xmp._processes.messages.plain_format import Malformed
from xmp._processes.messages.timeline import Timeline
from xmp._processes.output.event_loop import EventLoop, OutputPump
from xmp._processes.output.streams import Outlets
from xmp._processes.report.stack_texts import not_in_function, ranks
from xmp._processes.system import processes, stack_dump
from xmp._processes.system.records import Records
from xmp._rules.limits import SAY_AFTER
from xmp._rules.watch import Action, Watch
from xmp._rules.watch_events import Ended, Raised, WatchEvent
from xmp._words.record import RankPlace
from xmp._words.types import Limits

from .heard_voices import HeardVoice, HeardVoices
from .replica_handle import ReplicaHandle
from .shared_values import SharedValues

if TYPE_CHECKING:
    from xmp._processes.messages.replica import ShowInCell

    from .cell_displays import CellDisplays
    from .debugging import Debugging
    from .event_recorder import EventRecorder
    from .meetings import Meetings
    from .preemption_vote import PreemptionVote

__all__ = ["Monitor"]


class Calls(Protocol):
    """The calls of a gang after the first one (``gang_calls``)."""

    due: int | None

    def is_over(self) -> None: ...

    def report(self) -> None: ...

    def look(self, now: int) -> None: ...

    def recalled(self, ranks: tuple[int, ...], stacks: dict[int, str]) -> None: ...

    def holds(self, rank: int, data: bytes | None, size: int) -> bool: ...

    def take_results(self) -> list[tuple[int, bytes | None, int]]: ...


class Monitor:
    """All replicas of one launch on this host, with their state."""

    def __init__(
        self,
        order: LaunchOrder,
        replicas: list[ReplicaHandle],
        connection: Connection,
        outlets: Outlets,
        records: Records,
    ) -> None:
        self.replicas = replicas
        self.connection = connection
        """The connection to the launcher."""
        self.errors = outlets.errors
        self.loop = EventLoop()
        self.pump = OutputPump(self.loop, outlets.sinks)
        self.shared = SharedValues(order.host.replicas)
        self.voices = HeardVoices(self.loop, self.condemn, self._forget_voice)
        self.watch = _first_watch(order, replicas)
        self.calls: Calls | None = None
        self.vote: PreemptionVote | None = None
        self.recorder: EventRecorder | None = None
        if order.events:
            # Imported here: a module that a template has loaded costs every replica pages.
            from .event_recorder import EventRecorder

            self.recorder = EventRecorder(replicas)
        self.displays: CellDisplays | None = None
        if order.call.cell and order.settings.output is not None:
            from .cell_displays import CellDisplays

            self.displays = CellDisplays(
                order.call.cell, order.settings.output, outlets.sinks[-1], self.pump
            )
        self.ending = False
        self._program = order.settings.program
        self.over_hosts = order.several_hosts
        self._reported_first = False
        self._stacks: dict[int, str] = {}
        self._left: set[int] = set()  # local ranks, whose functions have returned
        self._records = records
        self._places: list[RankPlace] = []
        self._debugger: Debugging | None = None
        self.meetings: Meetings | None = None
        self.working: frozenset[int] = frozenset()  # between the last two looks of hang_watch

    def feed(self, event: WatchEvent) -> None:
        """Let ``watch`` decide which actions follow from this event, and carry them out."""
        actions = self.watch.feed(event)
        if self.recorder is not None:
            self.recorder.take(event, actions)
        for action in actions:
            self._do(action)
        if self._debugger is not None and self.watch.phase == "settling":
            self._debugger.failing()

    # --- a gang's calls ------------------------------------------------------------------------

    def begin_call(self, limits: Limits, called: int) -> None:
        """Forget all that the last call of the gang has left."""
        now, ranks = time.monotonic_ns(), [replica.rank for replica in self.replicas]
        self.watch = Watch(ranks, self.watch.grace, limits, called, now, stays=True, keeps=True)
        self.shared.begin_call()
        self.meetings, self._left = None, set()
        self._end_vote()

    def rest(self) -> None:
        """Wait for the next call of the gang, or for the end of a replica."""
        for replica in self.replicas:
            replica.rest()
        self.watch = Watch.at_rest([replica.rank for replica in self.replicas], self.watch.grace)
        self._stacks, self._places = {}, []

    def _end_vote(self) -> None:
        if self.vote is not None:
            self.vote.close()
            self.vote = None

    # --- ends ----------------------------------------------------------------------------------

    def end(self, event: WatchEvent) -> None:
        """End the launch; a debugger does not hold it up."""
        self.ending = True
        if self._debugger is not None:
            self._debugger.end()
        self.feed(event)

    def ended(self, replica: ReplicaHandle, at: int, status: int, peak: int, why: str = "") -> None:
        """Handle the end of a replica: when, wait status, peak size in bytes, and why if known."""
        replica.note_end(at, status, why)
        self.voices.forget(replica)
        if replica.failure is None:  # a failure ends the others
            self._expect_no_call(*replica.local_ranks)
        self._forget_steps(*replica.local_ranks)
        if self._debugger is not None:
            self._debugger.forget(replica)
        code = os.waitstatus_to_exitcode(status)
        if code == 0 and self.watch.stays:
            replica.fail(kind="exit", at=at, exit_code=0)  # no rank of a gang ends by itself
        elif code == 0 and not replica.returned:
            self._say_without_result(replica)
            self.returned_nothing(replica)
        self.connection.post(launch.ReplicaEnded(replica.rank, code, peak))
        words = replica.sources[0].tail()
        self.feed(Ended(replica.rank, at, max(code, 0), max(-code, 0), words))

    def condemn(self, replica: ReplicaHandle, why: str) -> None:
        """Kill a replica for a message that no replica of xmp sends, and stop listening to it."""
        now = time.monotonic_ns()
        self.loop.forget(replica.connection.fileno())
        replica.fail(kind=MALFORMED, at=now, why=why)
        replica.signal(signal.SIGKILL, group=True)
        self.feed(Raised(replica.rank, now, "sent a malformed message"))

    def returned_nothing(self, replica: ReplicaHandle) -> None:
        """Report a success without a result: ``sys.exit(0)``, ``os._exit(0)``."""
        self.connection.post(launch.ReplicaReturned(replica.rank, None, 0, replica.timeline, []))

    def _say_without_result(self, replica: ReplicaHandle) -> None:
        if self.watch.phase == "running" and replica.failure is None and not self._program:
            line = (
                f"xmp: {ranks(replica.ranks)} ended with exit code 0 before its function "
                "had returned (os._exit, exec): its result is None\n"
            )
            self.errors.put_lines(line.encode())  # with join=False no launcher may be listening

    def show(self, message: ShowInCell, voice: HeardVoice) -> None:
        """Pass on a replica's display to the notebook."""
        if self.displays is None:
            raise Malformed("its launcher is no notebook")
        self.displays.take(message, voice)

    def take_stacks(self, ranks: Collection[int]) -> dict[int, str]:
        return stack_dump.take(replica for replica in self.replicas if replica.rank in ranks)

    def preemption(self) -> PreemptionVote:
        """Return the vote on the call at which ``preempted()`` turns true."""
        if self.vote is None:
            self.vote = self._new_vote()
        return self.vote

    def _new_vote(self) -> PreemptionVote:
        if self.over_hosts:  # both are imported here, since most programs never ask
            from .preemption_vote import VoteOverHosts

            return VoteOverHosts(lambda *step: self.connection.post(launch.StepReached(*step)))
        from .preemption_vote import PreemptionVote

        return PreemptionVote()

    def left(self, *local_ranks: int) -> None:
        """Note that replicas have left their function: no other need wait for a call of theirs."""
        self._expect_no_call(*local_ranks)
        self._forget_steps(*local_ranks)

    def _expect_no_call(self, *local_ranks: int) -> None:
        self.shared.leave(*local_ranks)
        self._left.update(local_ranks)
        if self.meetings is not None:
            self.meetings.leave(*local_ranks)

    def _forget_voice(self, voice: HeardVoice) -> None:
        self.shared.forget(voice)
        if self.meetings is not None:
            self.meetings.forget(voice)

    def begin_meetings(self) -> Meetings:
        """Return what answers replicas that wait for each other with a time limit."""
        if self.meetings is None:
            # Imported here: a module that a template has loaded costs every replica pages.
            from .meetings import Meetings

            local_ranks = {each for replica in self.replicas for each in replica.local_ranks}
            self.meetings = Meetings(self._records.first_rank, local_ranks, self._whereabouts)
            self.meetings.leave(*self._left)
        return self.meetings

    def _whereabouts(self) -> str:
        from xmp._processes.report.hang_texts import found

        finding = found(self.where(), self.take_stacks(self.watch.live))
        return finding.words if finding.suspects else ""

    def _forget_steps(self, *local_ranks: int) -> None:
        """Note that these replicas do not call ``preempted()`` any more."""
        if self.vote is not None:
            self.vote.forget(*local_ranks)

    def debugger(self) -> Debugging:
        if self._debugger is None:
            # Imported here: a module that a template has loaded costs every replica pages.
            from .debugging import Debugging

            self._debugger = Debugging(
                self.loop, self.pump, self.connection, self.feed, self.condemn,
                self._say_of_debugger, self.ending,
            )  # fmt: skip
        return self._debugger

    def _say_of_debugger(self, line: str) -> None:
        if self.displays is None:  # a notebook lends no terminal: the replica's error says so
            self.errors.put_lines(f"xmp: {line}\n".encode())

    def _do(self, action: Action) -> None:
        chosen = [replica for replica in self.replicas if replica.rank in action.ranks]
        if action.name == "stacks":
            self._stacks = self.take_stacks(action.ranks)
            if self.over_hosts or self.watch.verdict().overdue is not None:
                self._places = self.where()
            self._report_first()
        elif action.name == "phases":
            taken = self.take_stacks(action.ranks)
            line = not_in_function(taken, len(self.replicas), SAY_AFTER)
            self.errors.put_lines(line.encode())  # with join=False no launcher may be listening
        elif action.name == "over":
            if self.calls is not None:
                self.calls.is_over()
        elif action.name == "SIGINT":
            if self.calls is not None and self.watch.phase == "recalling":
                self.calls.recalled(action.ranks, self._stacks)
            quitters = self._debugger.quitters if self._debugger is not None else ()
            for replica in chosen:
                if replica not in quitters:
                    replica.interrupt()
        elif action.name == "SIGTERM":
            for replica in chosen:
                replica.signal(signal.SIGTERM)
                replica.signal(signal.SIGCONT)  # a stopped process does not see SIGTERM
        elif action.name == "SIGKILL":
            for replica in chosen:
                replica.signal(signal.SIGKILL, group=True)

    def where(self) -> list[RankPlace]:
        """Return where each rank is, for those who ask why a launch took too long."""
        # Imported here: a module that a template has loaded costs every replica pages.
        from .hang_places import places

        watch = self.watch.verdict().overdue is not None
        return places(self.replicas, self._records, watch, self.working)

    def post_events(self) -> None:
        """Post the recorded events, if the launch has ``events=``."""
        if self.recorder is not None:
            self.recorder.post(self.connection)

    def _report_first(self) -> None:
        """Report the cause, once, to other hosts: they need it before this host's replicas end."""
        cause = self.watch.verdict().cause
        if self.over_hosts and not self._reported_first and cause is not None:
            self._reported_first = True
            replica = next(each for each in self.replicas if each.rank == cause)
            failure = dataclasses.replace(replica.fail(kind="signal"))
            replica.add_last_output(failure, self._stacks.get(cause, ""))
            self.connection.post(launch.FailedFirst(failure))

    def report(self) -> None:
        """End processes that the ended replicas have left, and report the verdict."""
        processes.end_descendants()
        done = self.verdict()
        self.post_events()
        for result in self.calls.take_results() if self.calls is not None else ():
            self.connection.post(launch.ReplicaReturned(*result, Timeline(), []))
        self.connection.send(done)

    def verdict(self) -> launch.Done:
        """Return what has failed so far, the cause first."""
        verdict = self.watch.verdict()
        by_rank = {replica.rank: replica for replica in self.replicas}
        failures = []
        for rank in verdict.order:
            failure = by_rank[rank].fail(kind="signal")
            failure.label, failure.at = verdict.labels[rank], verdict.times[rank]
            by_rank[rank].add_last_output(failure, self._stacks.get(rank, ""))
            failures.append(failure)
        return launch.Done(verdict.overdue, failures, self._stacks, self._places)


def _first_watch(order: LaunchOrder, replicas: list[ReplicaHandle]) -> Watch:
    """Return the failure rules of the launch, or of a gang's first call."""
    return Watch(
        [replica.rank for replica in replicas],
        int(order.settings.grace * 1e9),
        order.settings.limits or Limits(),
        order.called,
        time.monotonic_ns(),
        stays=order.settings.stays,
    )
