"""The supervisor's handlers for each message of a replica and each request of the launcher."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from xmp._processes.messages import launch
from xmp._processes.messages import replica as messages
from xmp._processes.messages.catalog import Handlers
from xmp._processes.messages.untrusted import Arrived
from xmp._processes.system.descriptors import close_all
from xmp._rules import watch_events as events

from .message_checks import names_of_modules
from .replica_handle import ReplicaHandle

if TYPE_CHECKING:
    from .heard_voices import HeardVoice
    from .monitor import Monitor
    from .preemption_vote import VoteOverHosts

__all__ = ["launcher_requests", "replica_messages"]

ELSEWHERE = -1
"""The rank that stands for progress on another host."""
ReplicaMessages = Handlers[[ReplicaHandle, Arrived]]


# --- from replicas ------------------------------------------------------------------------------


def replica_messages(monitor: Monitor) -> ReplicaMessages:
    """Return the table for ``handle(message, replica, arrived)``, called after ``check``."""
    table = ReplicaMessages()
    table.on(messages.FunctionEntered, partial(_entered, monitor))
    table.on(messages.PhaseBegun, partial(_phase, monitor))
    table.on(messages.ResultReady, partial(_returned, monitor))
    table.on(messages.ExitCalled, partial(_exited, monitor))
    table.on(messages.ExceptionRaised, partial(_raised, monitor))
    table.on(messages.VariablesTaken, _variables)
    table.on(
        messages.BreakpointReached,
        lambda message, replica, arrived: monitor.debugger().arrive(replica, message.rank, arrived),
    )
    table.on(messages.FunctionLeft, lambda message, *_: monitor.left(message.local_rank))
    table.on(messages.OpenVoice, monitor.voices.open)
    _answer_questions(monitor)
    return table


def _answer_questions(monitor: Monitor) -> None:
    """Fill the table for the questions of replicas' threads and children."""
    table = monitor.voices.table
    table.on(messages.AskPreempted, partial(_asked_preempted, monitor))
    table.on(messages.ShowInCell, lambda message, voice, _: monitor.show(message, voice))
    table.on(messages.Beat, partial(_beat, monitor))
    table.on(
        messages.Meet,
        lambda message, voice, _: monitor.begin_meetings().meet(
            message, voice, time.monotonic_ns()
        ),
    )
    table.on(
        messages.CallOff,
        lambda message, voice, _: monitor.begin_meetings().call_off(message, voice),
    )
    monitor.shared.add_to(table)


def _entered(monitor: Monitor, _: object, replica: ReplicaHandle, __: Arrived) -> None:
    now = time.monotonic_ns()
    monitor.connection.post(launch.ReplicaEntered(replica.rank, now))
    monitor.feed(events.Entered(replica.rank, now))


def _phase(
    monitor: Monitor, message: messages.PhaseBegun, replica: ReplicaHandle, _: Arrived
) -> None:
    if monitor.recorder is not None:
        monitor.recorder.phase(replica, message.name, message.at)
    monitor.connection.post(launch.ReplicaPhase(replica.rank, message.name))


def _returned(
    monitor: Monitor, message: messages.ResultReady, replica: ReplicaHandle, arrived: Arrived
) -> None:
    at, data, size, timeline, imported, at_post = message
    replica.returned, replica.timeline = True, timeline
    if monitor.calls is None or not monitor.calls.holds(replica.rank, data, size):
        hint = names_of_modules(imported)
        result = launch.ReplicaReturned(replica.rank, data, size, timeline, hint)
        monitor.connection.post(result, arrived.descriptors)
    close_all(arrived.descriptors)
    monitor.left(*replica.local_ranks)
    monitor.feed(events.Returned(replica.rank, at))
    if at_post:
        monitor.feed(events.AtPost(replica.rank, time.monotonic_ns()))


def _exited(
    monitor: Monitor, message: messages.ExitCalled, replica: ReplicaHandle, _: Arrived
) -> None:
    at, code, replica.timeline, words, traceback = message
    if code == 0 and not monitor.watch.stays:
        replica.returned = True
        monitor.left(*replica.local_ranks)
        monitor.returned_nothing(replica)
        monitor.feed(events.Returned(replica.rank, at))
    else:
        failure = replica.fail(kind="exit", at=at, exit_code=code)
        failure.message, failure.traceback = words, traceback
        monitor.feed(events.Raised(replica.rank, at, f"{words}, exit code {code}", exits=True))


def _raised(
    monitor: Monitor, message: messages.ExceptionRaised, replica: ReplicaHandle, _: Arrived
) -> None:
    replica.timeline = message.timeline
    kind = "interrupted" if message.interrupted else "raised"
    failure = replica.fail(message.rank, kind=kind, at=message.at)
    failure.error_type, failure.message = message.error_type, message.message
    failure.traceback, failure.pickled = message.traceback, message.exception
    failure.unsent, failure.final = message.unsent, message.final
    words = f"{message.error_type}: {message.message}"
    interrupted = message.interrupted
    monitor.feed(events.Raised(replica.rank, message.at, words, interrupted=interrupted))


def _variables(message: messages.VariablesTaken, replica: ReplicaHandle, _: Arrived) -> None:
    if replica.failure is not None and replica.failure.kind == "raised":
        replica.failure.variables = message.text


def _asked_preempted(
    monitor: Monitor, message: messages.AskPreempted, voice: HeardVoice, _: Arrived
) -> None:
    vote = monitor.preemption()
    flag = [vote.flag] if message.wants_flag else []

    def answer(step: int) -> None:
        if 0 < step <= message.calls:
            vote.note_turned(voice.local_rank)
        voice.answer(messages.PreemptedAt(step), *flag)

    if message.calls and not voice.of_child:
        vote.answer(voice.local_rank, message.calls, answer)
    else:
        answer(0)


def _beat(monitor: Monitor, _: messages.Beat, voice: HeardVoice, __: Arrived) -> None:
    monitor.feed(events.Progress(voice.replica.rank, time.monotonic_ns()))


# --- from the launcher --------------------------------------------------------------------------


def launcher_requests(monitor: Monitor) -> Handlers[[list[int]]]:
    """Return the table for ``handle(message, descriptors)``."""

    def end(event: type[events.Interrupt | events.Stop | events.Kill], *_: object) -> None:
        monitor.end(event(time.monotonic_ns()))

    def signal_all(number: int, event: type[events.Pause | events.Resume], *_: object) -> None:
        for replica in monitor.replicas:
            replica.signal(number, group=True)
        monitor.feed(event(time.monotonic_ns()))

    table = Handlers[[list[int]]]()
    table.on(launch.Interrupt, partial(end, events.Interrupt))
    table.on(launch.Stop, partial(end, events.Stop))
    table.on(launch.Kill, partial(end, events.Kill))
    table.on(launch.Pause, partial(signal_all, signal.SIGSTOP, events.Pause))
    table.on(launch.Resume, partial(signal_all, signal.SIGCONT, events.Resume))
    table.on(launch.SetGrace, partial(_set_grace, monitor))
    table.on(launch.TakeStacks, partial(_take_stacks, monitor))
    table.on(launch.Preempt, partial(_preempt, monitor))
    table.on(launch.PreemptElsewhere, partial(_preempt_elsewhere, monitor))
    table.on(launch.ProposedStep, partial(_propose, monitor))
    table.on(
        launch.ProgressElsewhere,
        lambda *_: monitor.feed(events.Progress(ELSEWHERE, time.monotonic_ns())),
    )
    table.on(launch.AnswerDebugger, lambda message, ends: monitor.debugger().answer(message, ends))
    table.on(launch.InterruptDebugger, lambda *_: monitor.debugger().interrupt())
    return table


def _set_grace(monitor: Monitor, message: launch.SetGrace, _: list[int]) -> None:
    monitor.watch.grace = monitor.watch.patience = int(message.seconds * 1e9)


def _take_stacks(monitor: Monitor, _: launch.TakeStacks, __: list[int]) -> None:
    taken = monitor.take_stacks({replica.rank for replica in monitor.replicas})
    monitor.connection.post(launch.StackTexts(taken, monitor.where()))


def _preempt(monitor: Monitor, _: launch.Preempt, __: list[int]) -> None:
    """Begin the vote if replicas call ``preempted()``: they then end by themselves.

    Otherwise end the launch: all get SIGTERM.
    """
    agreed = monitor.vote is not None and monitor.vote.begin()
    monitor.connection.post(launch.PreemptAnswer(agreed))
    if not agreed:
        monitor.end(events.Stop(time.monotonic_ns()))


def _preempt_elsewhere(monitor: Monitor, _: launch.PreemptElsewhere, __: list[int]) -> None:
    _vote_over_hosts(monitor).begin_elsewhere()


def _propose(monitor: Monitor, message: launch.ProposedStep, _: list[int]) -> None:
    _vote_over_hosts(monitor).propose(*message)


def _vote_over_hosts(monitor: Monitor) -> VoteOverHosts:
    from .preemption_vote import VoteOverHosts

    vote = monitor.preemption()
    assert isinstance(vote, VoteOverHosts)
    return vote
