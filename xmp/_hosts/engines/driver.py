"""From the call of ``launch`` to the agents: what each host gets, and in which order."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp import _processes
from xmp._calls import host as _host
from xmp._calls.job import Job
from xmp._payload.script import apart
from xmp._plan import planner
from xmp._processes import Call
from xmp._processes.launcher.job import Job as PlannedJob
from xmp._processes.launcher.launch_registry import reap_finished
from xmp._processes.launcher.packed_order import packed_for_hosts
from xmp._processes.messages.hosts import HostOrder
from xmp._processes.messages.order import PackedCall
from xmp._processes.messages.thread_replicas import by_process
from xmp._processes.output.log_files import prepare
from xmp._processes.terminal.console import in_notebook
from xmp._words.errors import PlanError
from xmp._words.types import HostPlan, HostsByHand, JobPlan, Output, Request

from .gathered_logs import HostLogs
from .host_output import names_apart, over_hosts
from .hosts_launch import HostsLaunch
from .script_text import as_text

if TYPE_CHECKING:
    from xmp._payload import Packed
    from xmp._processes import Results

    from .protocol import Engine, Group, HostFound

__all__ = ["launched"]


def launched(
    engine: Engine, hosts: Any, request: Request, call: Call, join: bool
) -> Job[Any] | Results[Any]:
    """Plan for all hosts, start their agents, and wait if ``join``."""
    _refuse(call)
    attempt: Any = functools.partial(_attempt, engine, hosts, request)
    return _processes.launch(call, attempt, join, handle=Job)  # type: ignore[return-value]


def _refuse(call: Call) -> None:
    if call.settings.start_method == "fork":
        raise PlanError(
            'start_method="fork" with engine=: the replicas of a host are started by an agent '
            'there, and are no forks of this process. Allowed: "forkserver", "spawn"',
            code="XMP-P02",
        )


@_processes.standard_numbers_taken()
def _attempt(engine: Engine, hosts: Any, request: Request, call: Call) -> HostsLaunch:
    """One attempt; a host that has gone is replaced before it."""
    called = time.monotonic_ns()
    reap_finished()  # jobs that have ended give their hosts back
    group = engine.group(hosts, request, call)
    try:
        launch, packed = _planned(engine, group, request, call, called)
    except BaseException:
        group.release(lost=False)
        raise
    with contextlib.closing(packed):
        launch.start()
    return launch


def _planned(
    engine: Engine, group: Group, request: Request, call: Call, called: int
) -> tuple[HostsLaunch, Packed]:
    """Return the launch, before it has a process, and what holds its packed call."""
    first = group.hosts[0]
    with _names_in_errors(first):
        request, draft = _host.for_hosts(_on_host(request, group, 0), call, first.facts)
    group.refuse(draft)
    request = engine.settled(request, draft)
    plan = _whole(request, group)
    output = over_hosts(call.settings.output, len(group.hosts))
    call = call.using(output=output)
    if output is not None:
        # On other machines their agents make the files.
        here = group.files(0) is None or output.gather
        output = output if here else replace(output, log_dir=None)
        _prepare(output, plan, truncate=not call.settings.restart_count)
    with contextlib.nullcontext() if group.imports_script() else apart():
        packed_call, packed = packed_for_hosts(call)
    packed_call = replace(packed_call, cell=os.urandom(16) if in_notebook() else b"")
    if group.inherited() is None:  # other machines, which need not have the script's file
        packed_call = replace(packed_call, main=as_text(packed_call.main))
    if call.telling is None:
        call = replace(call, telling=_processes.event_stream(call.observer))
    job = PlannedJob(**vars(call), plan=plan, host=_all_processes(plan), called=called, leases={})
    orders = _orders(request, packed_call, group, job)
    logs = HostLogs(group, call.settings.output, plan, call.settings.restart_count)
    planned = functools.partial(_whole, request, group)
    return HostsLaunch(job, group, orders, packed_call, planned, logs), packed


def _prepare(output: Output, plan: JobPlan, truncate: bool) -> None:
    """Make the log files of all hosts, which have this machine's files; PlanError as for one."""
    for host in plan.hosts:
        prepare(output, replace(plan, hosts=(host,)), truncate)


def _on_host(request: Request, group: Group, index: int, port: int = 0) -> Request:
    addresses = tuple(host.address for host in group.hosts)
    world = HostsByHand(index, addresses, port, said=f"hosts={len(addresses)}")
    return replace(request, world=world)


def _whole(request: Request, group: Group, port: int = 0) -> JobPlan:
    """Return the plans of all hosts as one. Raise PlanError if they differ too much for one job."""
    plans = [_plan_of(request, group, index, port) for index in range(len(group.hosts))]
    for host, plan in zip(group.hosts, plans):
        _refuse_different(group.hosts[0], plans[0], host, plan)
    hosts = tuple(plan.hosts[0] for plan in plans)
    return replace(plans[0], hosts=hosts)


def _plan_of(request: Request, group: Group, index: int, port: int) -> JobPlan:
    host = group.hosts[index]
    with _names_in_errors(host):
        return planner.plan(_on_host(request, group, index, port), host.facts)


@contextlib.contextmanager
def _names_in_errors(host: HostFound) -> Iterator[None]:
    try:
        yield
    except PlanError as error:
        raise PlanError(f"{_named(host)}: {error}") from error


def _named(host: HostFound) -> str:
    address = "" if host.name == host.address else f" ({host.address})"
    return f"host {host.name}{address}"


def _refuse_different(first: HostFound, plan: JobPlan, host: HostFound, other: JobPlan) -> None:
    """Raise PlanError unless two hosts use one runtime, with as many replicas each."""
    names = [_named(each) for each in (first, host)]
    if plan.runtime != other.runtime:
        raise PlanError(
            f"the hosts differ: {names[0]} would use runtime {plan.runtime!r} ({plan.why}) and "
            f"{names[1]} {other.runtime!r} ({other.why}). Pass runtime= with one that all have",
            code="XMP-H03",
        )
    counts = [len(each.hosts[0].replicas) for each in (plan, other)]
    if counts[0] != counts[1]:
        raise PlanError(
            f"the hosts differ: {names[0]} takes {counts[0]} replicas "
            f"({dict(plan.sources)['replicas']}) and {names[1]} {counts[1]} "
            f"({dict(other.sources)['replicas']}), and all run as many as the others. Give "
            f"nprocs={min(counts)}, or hosts that are alike",
            code="XMP-H03",
        )


def _all_processes(plan: JobPlan) -> HostPlan:
    """All replicas of the job as those of one host, which the driver is to its user."""
    replicas = [each for host in plan.hosts for each in by_process(host).replicas]
    return HostPlan(-1, "", tuple(replicas))


def _orders(request: Request, packed: PackedCall, group: Group, job: PlannedJob) -> list[HostOrder]:
    names = names_apart([host.name for host in group.hosts])
    common = HostOrder(
        request=request,
        call=packed,
        settings=job.settings,
        called=job.called,
        inherited=group.inherited(),
        environment=dict(group.environment),
        search_path=None,
        program_path=[],
        events=job.telling is not None,
        phases=job.reports_phases,
    )
    return [
        replace(
            common,
            request=_on_host(request, group, index),
            settings=replace(
                job.settings,
                output=job.settings.output and replace(job.settings.output, host=names[index]),
                host_name=host.name,
            ),
            search_path=group.search_path(index),
            program_path=group.program_path(index),
        )
        for index, host in enumerate(group.hosts)
    ]
