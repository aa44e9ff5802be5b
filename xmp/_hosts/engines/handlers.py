"""What the driver does with each message of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmp._processes.messages import hosts
from xmp._processes.messages import launch as messages
from xmp._processes.messages.catalog import Handlers, Message

if TYPE_CHECKING:
    from .host import Host, LaunchOverHosts

__all__ = ["agent_messages"]


def _came(_: hosts.HostCame, launch: LaunchOverHosts, host: Host, __: list[int]) -> None:
    host.came = True


def _over(message: hosts.HostOver, launch: LaunchOverHosts, host: Host, _: list[int]) -> None:
    host.over = message


def _started(
    message: messages.ReplicasStarted, launch: LaunchOverHosts, host: Host, _: list[int]
) -> None:
    launch.outcome.started(message)
    first = "joining" if launch.job.plan.framework and not launch.job.reports_phases else "starting"
    for rank, _pid, _at in message.replicas:
        launch.progress.reached(rank, first)


def _entered(
    message: messages.ReplicaEntered, launch: LaunchOverHosts, host: Host, _: list[int]
) -> None:
    launch.outcome.entered(message.rank, message.at)
    launch.progress.reached(message.rank, "running")


def _returned(
    message: messages.ReplicaReturned, launch: LaunchOverHosts, host: Host, files: list[int]
) -> None:
    launch.outcome.returned(message, files)


def _ended(
    message: messages.ReplicaEnded, launch: LaunchOverHosts, host: Host, _: list[int]
) -> None:
    launch.outcome.ended(message)
    launch.progress.reached(message.rank, "failed" if message.exit_code else "done")


def _done(message: messages.Done, launch: LaunchOverHosts, host: Host, _: list[int]) -> None:
    host.done = message
    launch.count_answers()


def _not_loaded(
    message: messages.LoadFailed, launch: LaunchOverHosts, host: Host, _: list[int]
) -> None:
    host.unloaded = message


def _stacks(
    message: messages.StackTexts, launch: LaunchOverHosts, host: Host, _: list[int]
) -> None:
    host.stacks = message.by_rank
    launch.stacks_came()


def _preempted(
    message: messages.PreemptAnswer, launch: LaunchOverHosts, host: Host, _: list[int]
) -> None:
    host.preempted = message.agreed
    launch.count_answers()


def _ignored(message: Message, launch: LaunchOverHosts, host: Host, _: list[int]) -> None:
    """The agent, as the launcher of its host, does what follows from it."""


def _handlers() -> Handlers[[LaunchOverHosts, Host, list[int]]]:
    table = Handlers[["LaunchOverHosts", "Host", list[int]]]()
    on = table.on
    on(hosts.PortsHeld, lambda held, launch, *_: launch.start_others(held.port))
    on(hosts.HostCame, _came)
    on(hosts.HostOver, _over)
    on(messages.ReplicasStarted, _started)
    on(messages.ReplicaPhase, lambda phase, launch, *_: launch.progress.reached(*phase))
    on(messages.ReplicaEntered, _entered)
    on(messages.ReplicaReturned, _returned)
    on(messages.ReplicaEnded, _ended)
    on(messages.Events, lambda events, launch, *_: launch.events.add(events.records))
    on(messages.StackTexts, _stacks)
    on(messages.PreemptAnswer, _preempted)
    on(messages.LoadFailed, _not_loaded)
    on(messages.Done, _done)
    for kind in (
        messages.CannotMake, messages.FailedFirst, messages.UnsafeToFork, messages.AtBreakpoint,
        messages.DebuggerLeft,
        messages.StepReached,
        messages.ProgressMade,
    ):  # fmt: skip
        on(kind, _ignored)
    return table


agent_messages = _handlers()
"""The table for ``handle(message, launch, host, descriptors)``."""
