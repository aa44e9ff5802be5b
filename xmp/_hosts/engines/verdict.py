"""How a launch over hosts has failed: from what each host has reported, one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xmp._processes.messages.launch import Done
from xmp._processes.report.replica_error import not_loaded
from xmp._rules import restarts
from xmp._rules.limits import START, Overdue
from xmp._rules.watch import CAUSE, COLLATERAL, STOPPED, UNKNOWN, is_victim
from xmp._words import errors
from xmp._words.errors import HostLost, ReplicaError, ReplicaTimeout, StartError, XmpError
from xmp._words.host_words import HostFailure

from .missing import missing_in

if TYPE_CHECKING:
    from xmp._processes.messages.order import Failure

    from .host import Host, LaunchOverHosts
    from .protocol import Group

__all__ = ["by_name", "complete", "host_of", "may_mend", "not_the_cause", "settle"]

_NOT_OF_REPLICAS = ("HostLost", "Ended")
"""Kinds of a verdict without a report of replicas."""


def settle(launch: LaunchOverHosts) -> None:
    """Put into the outcome what the launch has failed with, if it has."""
    hosts, outcome = launch.hosts, launch.outcome
    heard = next((host.verdict for host in hosts if host.verdict is not None), None)
    verdict = heard and by_name(hosts, heard)
    outcome.leftovers = "\n".join(filter(None, (host.leftovers for host in hosts)))
    unloaded = [host for host in hosts if host.unloaded is not None]
    if unloaded and outcome.broken is None:
        outcome.broken = _not_loaded(unloaded)
    is_missed = verdict is not None and verdict.kind == "HostLost" and not launch.asked_to_end
    missed = verdict if is_missed else None
    lost = [host for host in hosts if host.lost and not host.was_asked]
    if missed is not None and not lost:  # the others have noticed first that its agent has ended
        lost = [host for host in hosts if host.lost and host.agent.index == missed.host]
    if lost and _is_cause(lost, verdict):
        outcome.broken = _host_lost(lost[0])
        return
    if missed is not None:
        named = next((host for host in hosts if host.agent.index == missed.host), None)
        if named is not None and _says_why(named):
            outcome.broken = _as_error(named)
            return
        outcome.elsewhere = missed  # a link, or the carrier of a host, and no agent
        return
    cause = host_of(hosts, verdict)
    if cause is not None:
        _merge(launch, cause)
    elif outcome.broken is None:
        _without_replicas(launch, verdict)


def by_name(hosts: Sequence[Host], verdict: HostFailure) -> HostFailure:
    """The verdict with the driver's name of its host: another host may know its address alone."""
    for host in hosts:
        index, name = host.agent.index, host.agent.name
        if index == verdict.host:
            text = verdict.text
            if name not in text:
                text = text.replace(f"host {index},", f"host {index} ({name}),", 1)
            return replace(verdict, name=name, text=text)
    return verdict


def _says_why(host: Host) -> bool:
    """Whether its agent has reported why it has left the others before it had replicas."""
    return host.over is not None and host.over.kind not in ("", "HostLost") and host.done is None


def _is_cause(lost: Sequence[Host], verdict: HostFailure | None) -> bool:
    gone = {host.agent.index for host in lost}
    return verdict is None or verdict.kind in _NOT_OF_REPLICAS or verdict.host in gone


def _not_loaded(hosts: Sequence[Host]) -> StartError:
    """The error of the first host, with the names of all that have the same one."""
    found = hosts[0].unloaded
    assert found is not None
    alike = [host for host in hosts if host.unloaded and host.unloaded.message == found.message]
    names = ", ".join(f"host {host.agent.index} ({host.agent.name})" for host in alike)
    return not_loaded(*found, where=f"on {names}: ")


def _host_lost(host: Host) -> HostLost:
    agent = host.agent
    error = HostLost(
        f"host {agent.index} ({agent.name}) is lost: its agent (pid {agent.pid}) {host.lost}"
    )
    error.host, error.host_index = agent.name, agent.index
    return error


def host_of(hosts: Sequence[Host], verdict: HostFailure | None) -> Host | None:
    """The host whose replicas have failed first, with their whole reports."""
    failed = [host for host in hosts if host.done and (host.done.failures or host.done.overdue)]
    if verdict is not None:
        named = [host for host in failed if host.agent.index == verdict.host]
        if named and not _moment(named[0])[0]:
            return named[0]
        if not named and verdict.kind not in _NOT_OF_REPLICAS:
            return None
    return min(failed, key=_moment, default=None)


def _moment(host: Host) -> tuple[bool, bool, int]:
    """A sort key: replicas that xmp has stopped are never the cause, and victims seldom."""
    done = host.done
    assert done is not None
    if done.overdue is not None:
        return (False, False, min((each.at for each in done.failures), default=0))
    return min((each.label == STOPPED, _is_victim(each), each.at) for each in done.failures)


def _is_victim(failure: Failure) -> bool:
    return is_victim(f"{failure.error_type}: {failure.message}\n{failure.stderr}")


def _merge(launch: LaunchOverHosts, cause: Host) -> None:
    """Take the failures of all hosts in, the first one first."""
    own = cause.done
    assert own is not None
    failures, stacks = list(own.failures), dict(own.stacks)
    for host in launch.hosts:
        if host is not cause and host.done is not None:
            failures += [not_the_cause(each) for each in host.done.failures]
            stacks |= host.done.stacks or host.stacks or {}
    launch.outcome.host = cause.agent.name
    launch.outcome.done(Done(own.overdue and _whole(launch, own.overdue), failures, stacks))
    if cause.over is not None and cause.over.memory is not None:
        launch.outcome.memory = cause.over.memory  # the kernel counts kills on each host


def _whole(launch: LaunchOverHosts, overdue: Overdue) -> Overdue:
    """What all hosts waited for when the limit of one was over.

    The others were stopped because of it, or moments before their own.
    """
    waited, finished = set(overdue.ranks), set(overdue.finished)
    for host in launch.hosts:
        done = host.done
        if done is not None and done.overdue is not None:
            waited |= {*done.overdue.ranks}
            finished |= {*done.overdue.finished}
        elif done is not None and overdue.name != START:
            waited |= {each.rank for each in done.failures if each.label == STOPPED}
    if not waited <= {*overdue.ranks}:
        launch.outcome.host = f"{len(launch.hosts)} hosts"
    return replace(overdue, ranks=tuple(sorted(waited)), finished=tuple(sorted(finished)))


def not_the_cause(failure: Failure) -> Failure:
    """A failure that its host has called the cause; another host's was reported first."""
    if failure.label != CAUSE:
        return failure
    return replace(failure, label=COLLATERAL if _is_victim(failure) else UNKNOWN)


def _without_replicas(launch: LaunchOverHosts, verdict: HostFailure | None) -> None:
    """No replica has failed: a host could not start, or the launch was ended before."""
    failed = [host for host in launch.hosts if host.over is not None and host.over.kind]
    named = [host for host in failed if verdict is not None and verdict.host == host.agent.index]
    if verdict is not None and verdict.kind not in _NOT_OF_REPLICAS and not named:
        launch.outcome.elsewhere = verdict
    elif failed:
        launch.outcome.broken = _as_error([*named, *failed][0])
    elif launch.asked_to_end and any(host.lost for host in launch.hosts):
        why = launch.outcome.ended_by or "its launcher got a signal"
        launch.outcome.broken = StartError(
            f"the launch was ended before its replicas ran: {why}", code="XMP-R06"
        )


def _as_error(host: Host) -> BaseException:
    """The error that a host has reported: of its class, with the host's name where it helps."""
    assert host.over is not None
    kind, where = host.over.kind, f"host {host.agent.index} ({host.agent.name})"
    text = host.over.text if where in host.over.text else f"on {where}: {host.over.text}"
    if kind == "TypeError":
        return TypeError(text)
    found = getattr(errors, kind, None)
    if found is None or not issubclass(found, XmpError) or issubclass(found, ReplicaError):
        return (ReplicaTimeout if kind == "ReplicaTimeout" else StartError)(text)
    error: XmpError = found(text)
    if isinstance(error, HostLost):
        error.host, error.host_index = host.agent.name, host.agent.index
    return error


def complete(error: XmpError, launch: LaunchOverHosts, group: Group) -> None:
    """Add to an error what only the driver knows: a host's name, and how a module gets there."""
    if isinstance(error, ReplicaTimeout) and error.rank >= 0:
        error.host = launch.host_of(error.rank).agent.name
    of_host = isinstance(error, (StartError, ReplicaError))
    if of_host and (missing := missing_in(str(error))):
        error._add(group.advice(missing, launch.job.settings.program))


def may_mend(error: BaseException, launch: LaunchOverHosts) -> bool:
    """Whether another attempt may succeed, on these hosts or with another one for one lost."""
    if isinstance(error, HostLost):
        return True
    verdict = launch.outcome.elsewhere
    if verdict is not None:
        return not verdict.final
    reports = [host.over for host in launch.hosts if host.over is not None and host.over.kind]
    return any(over.mends for over in reports) or restarts.may_mend(launch.outcome, error)
