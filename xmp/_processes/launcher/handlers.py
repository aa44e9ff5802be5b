"""What the launcher does with each message of a launch's supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmp import _log
from xmp._errors import StartError
from xmp._processes.messages.catalog import Handlers
from xmp._processes.messages.launch import (
    AtBreakpoint,
    CannotMake,
    DebuggerLeft,
    Done,
    Events,
    LoadFailed,
    PreemptAnswer,
    ReplicaEnded,
    ReplicaEntered,
    ReplicaPhase,
    ReplicaReturned,
    ReplicasStarted,
    StackTexts,
    UnsafeToFork,
)
from xmp._processes.report import replica_error

if TYPE_CHECKING:
    from .launch import Launch

__all__ = ["supervisor_messages"]

# Not bound to one launch: a table in each would close a reference cycle, and results, which may be
# large, would stay until the next garbage collection.
supervisor_messages: Handlers[[Launch, list[int]]] = Handlers()
"""The table for ``handle(message, launch, descriptors)``."""


def _started(message: ReplicasStarted, launch: Launch, _: list[int]) -> None:
    order = launch.link.order
    launch.link.has_started(message.supervisor)
    launch.outcome.started(message, order.called)
    pids = [pid for _rank, pid, _at in message.replicas]
    _log.debug("supervisor %d has made the replicas %s", message.supervisor, pids)
    for rank, _pid, _at in message.replicas:
        launch.progress.reached(rank, order.first_phase)


def _phase(message: ReplicaPhase, launch: Launch, _: list[int]) -> None:
    launch.progress.reached(message.rank, message.name)


def _entered(message: ReplicaEntered, launch: Launch, _: list[int]) -> None:
    launch.outcome.entered(message.rank, message.at)
    launch.progress.reached(message.rank, "running")


def _returned(message: ReplicaReturned, launch: Launch, descriptors: list[int]) -> None:
    launch.outcome.returned(message, descriptors)


def _ended(message: ReplicaEnded, launch: Launch, _: list[int]) -> None:
    launch.outcome.ended(message)
    launch.progress.reached(message.rank, "failed" if message.exit_code else "done")


def _events(message: Events, launch: Launch, _: list[int]) -> None:
    launch.events.add(message.records)


def _stacks(message: StackTexts, launch: Launch, _: list[int]) -> None:
    launch.stacks_taken(message.by_rank)


def _preempted(message: PreemptAnswer, launch: Launch, _: list[int]) -> None:
    launch.sigterm.answered(message.agreed)


def _breakpoint(message: AtBreakpoint, launch: Launch, _: list[int]) -> None:
    launch.progress.close()
    launch.lender.at_breakpoint(message)


def _debugger_left(message: DebuggerLeft, launch: Launch, _: list[int]) -> None:
    launch.progress.close()
    launch.lender.left(message)


def _unsafe(message: UnsafeToFork, launch: Launch, _: list[int]) -> None:
    launch.link.begin_with_fresh_interpreters(message.culprits)


def _load_failed(message: LoadFailed, launch: Launch, _: list[int]) -> None:
    launch.fail(replica_error.not_loaded(*message))


def _cannot_make(message: CannotMake, launch: Launch, _: list[int]) -> None:
    launch.fail(StartError(message.message))


def _done(message: Done, launch: Launch, _: list[int]) -> None:
    launch.outcome.done(message)
    launch.finish()


supervisor_messages.on(ReplicasStarted, _started)
supervisor_messages.on(ReplicaPhase, _phase)
supervisor_messages.on(ReplicaEntered, _entered)
supervisor_messages.on(ReplicaReturned, _returned)
supervisor_messages.on(ReplicaEnded, _ended)
supervisor_messages.on(Events, _events)
supervisor_messages.on(StackTexts, _stacks)
supervisor_messages.on(PreemptAnswer, _preempted)
supervisor_messages.on(AtBreakpoint, _breakpoint)
supervisor_messages.on(DebuggerLeft, _debugger_left)
supervisor_messages.on(UnsafeToFork, _unsafe)
supervisor_messages.on(LoadFailed, _load_failed)
supervisor_messages.on(CannotMake, _cannot_make)
supervisor_messages.on(Done, _done)
