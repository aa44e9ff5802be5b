"""What the launcher does with each message of a launch's supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmp._os import log
from xmp._processes.messages import launch as messages
from xmp._processes.messages.catalog import Handlers
from xmp._processes.report.replica_error import not_loaded
from xmp._rules.host_rules import StepAnswered, VoteAnswered
from xmp._words.errors import StartError

if TYPE_CHECKING:
    from .supervised import SupervisedLaunch

__all__ = ["supervisor_messages"]


def _started(message: messages.ReplicasStarted, launch: SupervisedLaunch, _: list[int]) -> None:
    launch.link.has_started(message.supervisor)
    launch.outcome.started(message)
    pids = [pid for _rank, pid, _at in message.replicas]
    log.debug("supervisor %d has made the replicas %s", message.supervisor, pids)
    for rank, _pid, _at in message.replicas:
        launch.progress.reached(rank, launch.link.order.first_phase)


def _entered(message: messages.ReplicaEntered, launch: SupervisedLaunch, _: list[int]) -> None:
    launch.outcome.entered(message.rank, message.at)
    launch.progress.reached(message.rank, "running")


def _ended(message: messages.ReplicaEnded, launch: SupervisedLaunch, _: list[int]) -> None:
    launch.outcome.ended(message)
    launch.progress.reached(message.rank, "failed" if message.exit_code else "done")


def _breakpoint(message: messages.AtBreakpoint, launch: SupervisedLaunch, _: list[int]) -> None:
    launch.progress.close()
    launch.lender.at_breakpoint(message)


def _debugger_left(message: messages.DebuggerLeft, launch: SupervisedLaunch, _: list[int]) -> None:
    launch.progress.close()
    launch.lender.left(message)


def _failed_first(message: messages.FailedFirst, launch: SupervisedLaunch, _: list[int]) -> None:
    if launch.others is not None:
        failed = launch.failed(launch.outcome.first(message.failure), message.failure)
        if failed is not None:
            launch.tell_hosts(failed)


def _not_loaded(message: messages.LoadFailed, launch: SupervisedLaunch, _: list[int]) -> None:
    text, words, pickled = message
    launch.fail(not_loaded(text, words, pickled if launch.job.relay is None else None))


def _returned(
    message: messages.ReplicaReturned, launch: SupervisedLaunch, files: list[int]
) -> None:
    launch.outcome.returned(message, files)


def _preempted(message: messages.PreemptAnswer, launch: SupervisedLaunch, _: list[int]) -> None:
    launch.sigterm.answered(message.agreed)
    launch.tell_hosts(VoteAnswered(message.agreed))


def _reached(message: messages.StepReached, launch: SupervisedLaunch, _: list[int]) -> None:
    launch.tell_hosts(StepAnswered(*message))


def _progressed(_: messages.ProgressMade, launch: SupervisedLaunch, __: list[int]) -> None:
    if launch.others is not None:
        launch.others.progressed()


def _done(message: messages.Done, launch: SupervisedLaunch, _: list[int]) -> None:
    launch.outcome.done(message)
    launch.none_left()


def _handlers() -> Handlers[[SupervisedLaunch, list[int]]]:
    table = Handlers[["SupervisedLaunch", list[int]]]()
    on = table.on
    on(messages.ReplicasStarted, _started)
    on(messages.ReplicaPhase, lambda phase, launch, _: launch.progress.reached(*phase))
    on(messages.ReplicaEntered, _entered)
    on(messages.ReplicaReturned, _returned)
    on(messages.ReplicaEnded, _ended)
    on(messages.Events, lambda events, launch, _: launch.events.add(events.records))
    on(messages.StackTexts, lambda stacks, launch, _: launch.stacks_taken(stacks.by_rank))
    on(messages.PreemptAnswer, _preempted)
    on(messages.StepReached, _reached)
    on(messages.ProgressMade, _progressed)
    on(messages.AtBreakpoint, _breakpoint)
    on(messages.DebuggerLeft, _debugger_left)
    on(
        messages.UnsafeToFork,
        lambda unsafe, launch, _: launch.link.begin_with_fresh_interpreters(unsafe.culprits),
    )
    on(messages.LoadFailed, _not_loaded)
    on(messages.CannotMake, lambda failed, launch, _: launch.fail(StartError(failed.message)))
    on(messages.FailedFirst, _failed_first)
    on(messages.Done, _done)
    return table


# Not bound to one launch: a table in each would close a reference cycle, and results, which may be
# large, would stay until the next garbage collection.
supervisor_messages = _handlers()
"""The table for ``handle(message, launch, descriptors)``."""
