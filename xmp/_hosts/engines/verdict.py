"""How a launch over hosts has failed: from what each host has reported, one error. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xmp._processes.messages.launch import Done
from xmp._processes.report.replica_error import not_loaded
from xmp._rules import restarts
from xmp._rules.limits import START, Overdue
from xmp._rules.watch import CAUSE, COLLATERAL, STOPPED, UNKNOWN, is_victim
from xmp._words import errors
from xmp._words.errors import HostLost, ReplicaError, ReplicaTimeout, StartError, XmpError
from xmp._words.host_words import HostFailure

if TYPE_CHECKING:
    from xmp._processes.messages.order import Failure
    from xmp._processes.report.out_of_memory import OomFinding
    from xmp._rules.restarts import Known

    from .host import Host

__all__ = ["JobVerdict", "by_name", "host_of", "may_mend", "not_the_cause", "verdict_of"]

_NOT_OF_REPLICAS = ("HostLost", "Ended")
"""Kinds of a verdict without a report of replicas."""


@dataclass
class JobVerdict:
    """How a launch over hosts has ended: well without ``broken``, ``elsewhere`` and ``done``."""

    leftovers: str = ""
    """Which processes of the launch still exist."""
    broken: BaseException | None = None
    """Why it failed, if no replica is the reason."""
    elsewhere: HostFailure | None = None
    """What another host has reported of a failure, if its own report has not come."""
    done: Done | None = None
    """The reports of all hosts, as of one supervisor."""
    place: str = ""
    """The host that the error names."""
    memory: OomFinding | None = None
    """The kernel's count there; None if nothing is known."""


def verdict_of(
    hosts: Sequence[Host], broken: BaseException | None, asked: bool, why: str
) -> JobVerdict:
    """Return how the launch has ended, when all hosts have.

    ``broken`` is a failure of the driver's own; ``asked``: the user has ended the launch; ``why``
    says how, if that is known.
    """
    found = JobVerdict("\n".join(filter(None, (host.leftovers for host in hosts))), broken)
    heard = next((host.verdict for host in hosts if host.verdict is not None), None)
    verdict = heard and by_name(hosts, heard)
    unloaded = [host for host in hosts if host.unloaded is not None]
    if unloaded and broken is None:
        found.broken = _not_loaded(unloaded)
    is_missed = verdict is not None and verdict.kind == "HostLost" and not asked
    missed = verdict if is_missed else None
    lost = [host for host in hosts if host.lost and not host.was_asked]
    if missed is not None and not lost:  # the others have noticed first that its agent has ended
        lost = [host for host in hosts if host.lost and host.agent.index == missed.host]
    if lost and _is_cause(lost, verdict):
        return replace(found, broken=_host_lost(lost[0]))
    if missed is not None:
        named = next((host for host in hosts if host.agent.index == missed.host), None)
        if named is not None and _says_why(named):
            return replace(found, broken=_as_error(named))
        return replace(found, elsewhere=missed)  # a link, or the carrier of a host, and no agent
    cause = host_of(hosts, verdict)
    if cause is not None:
        return _merged(found, hosts, cause)
    if found.broken is None:
        return _without_replicas(found, hosts, verdict, asked, why)
    return found


def by_name(hosts: Sequence[Host], verdict: HostFailure) -> HostFailure:
    """Return the verdict with the driver's name of its host: others may know its address alone."""
    for host in hosts:
        index, name = host.agent.index, host.agent.name
        if index == verdict.host:
            text = verdict.text
            if name not in text:
                text = text.replace(f"host {index},", f"host {index} ({name}),", 1)
            return replace(verdict, name=name, text=text)
    return verdict


def _says_why(host: Host) -> bool:
    """Return whether its agent has reported why it has left the others before it had replicas."""
    return host.over is not None and host.over.kind not in ("", "HostLost") and host.done is None


def _is_cause(lost: Sequence[Host], verdict: HostFailure | None) -> bool:
    gone = {host.agent.index for host in lost}
    return verdict is None or verdict.kind in _NOT_OF_REPLICAS or verdict.host in gone


def _not_loaded(hosts: Sequence[Host]) -> StartError:
    """Return the error of the first host, with the names of all that have the same one."""
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
    """Return the host whose replicas have failed first, with their whole reports."""
    failed = [host for host in hosts if host.done and (host.done.failures or host.done.overdue)]
    if verdict is not None:
        named = [host for host in failed if host.agent.index == verdict.host]
        if named and not _moment(named[0])[0]:
            return named[0]
        if not named and verdict.kind not in _NOT_OF_REPLICAS:
            return None
    return min(failed, key=_moment, default=None)


def _moment(host: Host) -> tuple[bool, bool, int]:
    """Return a sort key: replicas that xmp has stopped are never the cause, victims seldom."""
    done = host.done
    assert done is not None
    if done.overdue is not None:
        return (False, False, min((each.at for each in done.failures), default=0))
    return min((each.label == STOPPED, _is_victim(each), each.at) for each in done.failures)


def _is_victim(failure: Failure) -> bool:
    return is_victim(f"{failure.error_type}: {failure.message}\n{failure.stderr}")


def _merged(found: JobVerdict, hosts: Sequence[Host], cause: Host) -> JobVerdict:
    """Take the failures of all hosts in, the first one first."""
    own = cause.done
    assert own is not None
    failures, stacks, places = list(own.failures), dict(own.stacks), list(own.places)
    for host in hosts:
        if host is not cause and host.done is not None:
            failures += [not_the_cause(each) for each in host.done.failures]
            stacks |= host.done.stacks or host.stacks or {}
            places += host.done.places
    overdue, place = own.overdue, cause.agent.name
    if overdue is not None:
        whole = _whole(hosts, overdue)
        place = place if {*whole.ranks} <= {*overdue.ranks} else f"{len(hosts)} hosts"
        overdue = whole
    memory = None if cause.over is None else cause.over.memory  # the kernel counts on each host
    done = Done(overdue, failures, stacks, sorted(places, key=lambda each: each.rank))
    return replace(found, done=done, place=place, memory=memory)


def _whole(hosts: Sequence[Host], overdue: Overdue) -> Overdue:
    """Return what all hosts waited for when the limit of one was over.

    The others were stopped because of it, or moments before their own.
    """
    waited, finished = set(overdue.ranks), set(overdue.finished)
    for host in hosts:
        done = host.done
        if done is not None and done.overdue is not None:
            waited |= {*done.overdue.ranks}
            finished |= {*done.overdue.finished}
        elif done is not None and overdue.name != START:
            waited |= {each.rank for each in done.failures if each.label == STOPPED}
    return replace(overdue, ranks=tuple(sorted(waited)), finished=tuple(sorted(finished)))


def not_the_cause(failure: Failure) -> Failure:
    """Label a failure that its host has called the cause; another host's was reported first."""
    if failure.label != CAUSE:
        return failure
    return replace(failure, label=COLLATERAL if _is_victim(failure) else UNKNOWN)


def _without_replicas(
    found: JobVerdict, hosts: Sequence[Host], verdict: HostFailure | None, asked: bool, why: str
) -> JobVerdict:
    """Say why no replica has run: a host could not start, or the launch was ended before."""
    failed = [host for host in hosts if host.over is not None and host.over.kind]
    named = [host for host in failed if verdict is not None and verdict.host == host.agent.index]
    if verdict is not None and verdict.kind not in _NOT_OF_REPLICAS and not named:
        return replace(found, elsewhere=verdict)
    if failed:
        return replace(found, broken=_as_error([*named, *failed][0]))
    if asked and any(host.lost for host in hosts):
        why = why or "its launcher got a signal"
        text = f"the launch was ended before its replicas ran: {why}"
        return replace(found, broken=StartError(text, code="XMP-R06"))
    return found


def _as_error(host: Host) -> BaseException:
    """Make the error that a host has reported, of its class, with its name where it helps."""
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


def may_mend(error: BaseException, hosts: Sequence[Host], known: Known) -> bool:
    """Return whether another attempt may succeed, on these hosts or with one for a lost host.

    ``known`` is the outcome of the launch.
    """
    if isinstance(error, HostLost):
        return True
    reports = [host.over for host in hosts if host.over is not None and host.over.kind]
    return any(over.mends for over in reports) or restarts.may_mend(known, error)
