"""From the call of ``launch`` to the agents: what each host gets, before any process exists."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp import _host, _planner, _processes, _signals
from xmp._errors import PlanError
from xmp._probe import capacity
from xmp._processes import Call
from xmp._processes.launcher.job import Job as PlannedJob
from xmp._processes.launcher.packed_order import packed_for_hosts
from xmp._processes.launcher.server_process import search_path
from xmp._processes.messages.hosts import HostOrder, PackedCall
from xmp._processes.messages.thread_replicas import by_process
from xmp._processes.output.log_files import prepare
from xmp._processes.terminal.console import in_notebook
from xmp._types import HostPlan, HostsByHand, JobPlan, Output, Request

from .environment import without_launchers
from .hosts_launch import HostsLaunch
from .job import Job

if TYPE_CHECKING:
    from xmp._processes import Results

    from . import Engine

__all__ = ["launched"]


def launched(
    engine: Engine, count: int, request: Request, call: Call, join: bool
) -> Job[Any] | Results[Any]:
    """Plan for all hosts, start their agents, and wait if ``join``."""
    job: Job[Any] | None = None
    try:
        with _signals.deferred():
            job = Job(_started(engine, count, request, call))
            if join:
                return job._results(owned=True)
            _signals.returning(job.terminate)
        return job
    except BaseException:
        if job is not None:
            job.terminate()
        raise


@_processes.standard_numbers_taken()
def _started(engine: Engine, count: int, request: Request, call: Call) -> HostsLaunch:
    called = time.monotonic_ns()
    addresses = engine.addresses(count)
    _refuse(request, call, count)
    env = without_launchers(_host.host_facts())
    request = _on_host(request, addresses, 0)
    request, draft = _host.for_hosts(request, call, env)
    engine.refuse(draft)
    request = engine.settled(request, draft)
    plan = _whole(request, addresses, env)
    if call.output is not None:
        _prepare(call.output, plan)
    packed_call, packed = packed_for_hosts(call)
    cell = os.urandom(16) if in_notebook() else b""
    packed_call = replace(packed_call, cell=cell)
    call = replace(call, telling=_processes.event_stream(call.observer, several=True))
    job = PlannedJob(**vars(call), plan=plan, host=_all_processes(plan), called=called, leases={})
    orders = _orders(request, call, packed_call, addresses, called, job)
    with ExitStack() as undo:
        undo.callback(packed.close)
        launch = HostsLaunch(job, engine, addresses, orders, packed_call)
        launch.start()
    return launch


def _refuse(request: Request, call: Call, count: int) -> None:
    if call.method == "fork":
        raise PlanError(
            'start_method="fork" with engine=: the replicas of a host are started by an agent '
            'there, and are no forks of this process. Allowed: "forkserver", "spawn"'
        )
    why = capacity.too_many(count * (request.nprocs or 1))
    if why:
        raise PlanError(f"hosts={count}, nprocs={request.nprocs}: {why}")


def _prepare(output: Output, plan: JobPlan) -> None:
    """Make the log files of all hosts, which have this machine's files; PlanError as for one."""
    for host in plan.hosts:
        prepare(output, replace(plan, hosts=(host,)), truncate=True)


def _on_host(request: Request, addresses: Sequence[str], index: int) -> Request:
    world = HostsByHand(index, tuple(addresses), said=f"hosts={len(addresses)}")
    return replace(request, world=world)


def _whole(request: Request, addresses: Sequence[str], env: dict[str, str]) -> JobPlan:
    """The plans of all hosts, as one."""
    known = replace(_host.host_facts(), env=env, env_at_start={}, initialised=(), loaded=())
    plans = [
        _planner.plan(_on_host(request, addresses, index), known) for index in range(len(addresses))
    ]
    hosts = tuple(plan.hosts[0] for plan in plans)
    return replace(plans[0], hosts=hosts)


def _all_processes(plan: JobPlan) -> HostPlan:
    """All replicas of the job as those of one host, which the driver is to its user."""
    replicas = [each for host in plan.hosts for each in by_process(host).replicas]
    return HostPlan(-1, "", tuple(replicas))


def _orders(
    request: Request,
    call: Call,
    packed: PackedCall,
    addresses: Sequence[str],
    called: int,
    job: PlannedJob,
) -> list[HostOrder]:
    environment = {"XMP_JOB_ID": secrets.token_hex(8), "XMP_JOB_SECRET": secrets.token_hex(32)}
    options = {
        name: getattr(call, name)
        for name in ("method", "grace", "seed", "max_restarts", "output", "wants_results")
    }
    path = search_path()
    return [
        HostOrder(
            request=_on_host(request, addresses, index),
            call=packed,
            options=options,
            limits=call.limits,
            elapsed=time.monotonic_ns() - called,
            environment=environment,
            search_path=path,
            host_name=address,
            events=job.telling is not None,
            phases=job.reports_phases,
        )
        for index, address in enumerate(addresses)
    ]
