"""One host's share of a launch: facts, plan, leases, then the engine."""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xmp import _processes, _registry
from xmp._os import log, planned_files, ports, probe, signals
from xmp._os.imports import is_the_programs_own
from xmp._os.probe import resources
from xmp._payload.hints import modules_imported, names_used
from xmp._plan import planner, runtimes
from xmp._plan.clusters import per_device
from xmp._plan.runtime_choice import add_choice
from xmp._plan.runtimes._replica_variables import check_read_at_import
from xmp._plan.runtimes._request_checks import check_launcher, touched
from xmp._rules.notices import limit_of
from xmp._words.errors import PlanError, StartError, XmpError
from xmp._words.types import HostFacts, HostPlan, JobPlan, Limits, ReplicaPlan, Request

if TYPE_CHECKING:
    from xmp._processes import Call, Launch, ProcessContext, Results

__all__ = [
    "attempt",
    "expected_imports",
    "for_hosts",
    "gang_start",
    "host_facts",
    "launch",
    "launch_bare",
    "plan_for",
    "refuse_unready",
    "warm_up",
    "with_uses",
]

_COMPANIONS = {
    "torch": ("numpy", "numpy.random", "torch.distributed", "torch.nn.parallel"),
    "jax": ("numpy.random", "jax.numpy", "jax.experimental.multihost_utils"),
}
"""What programs use next to a package but often import only inside the function: a replica that
has to import ``numpy.random`` itself takes twice as long to start as one that has not."""

_COLLECTIVES = {
    *("init_process_group", "local_group", "all_reduce", "broadcast", "all_gather", "barrier")
}


def _hinted(call: Call, plan: JobPlan, known: HostFacts) -> tuple[str, ...]:
    """Return frameworks that the launcher has not loaded but the function seems to use."""
    names = names_used(call.fn)
    if plan.framework.endswith("torch_dist") and not names.isdisjoint(_COLLECTIVES):
        names.add("torch")
    found = (name for name in _COMPANIONS if name in names and known.frameworks.get(name))
    return tuple(name for name in found if not is_the_programs_own(name))


def _with_companions(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for name in names for n in (name, *_COMPANIONS.get(name, ()))))


def host_facts() -> HostFacts:
    """Return what this host is. Touch no device."""
    # A file that cannot be read says something of the host; what a handler raises does not.
    with signals.deferred():
        return probe.facts()


def plan_for(request: Request, known: HostFacts | Sequence[HostFacts] | None) -> JobPlan:
    """Return the plan for these facts, or for this host's. Raise PlanError."""
    with signals.deferred():
        return planner.plan(request, probe.facts() if known is None else known)


def launch(
    request: Request, call: Call, join: bool, held: ports.PortLease | None = None
) -> ProcessContext[Any] | Results[Any]:
    """Plan, hold the ports, start. Raise PlanError and PortError before any process exists.

    ``held`` has the ports of the first attempt, where they were held before.
    """
    attempt = functools.partial(_attempt, request, _Shared(held))
    return _processes.launch(call, attempt, join)


def gang_start(request: Request, call: Call) -> Launch:
    """Start the replicas of a gang, from facts to processes: at first, and after each loss."""
    return _attempt(request, _Shared(None), _processes.ready(call.using(stays=True)))


def attempt(request: Request, call: Call, held: ports.PortLease | None, called: int) -> Launch:
    """Make one attempt of a launch over hosts; its driver decides whether another one follows.

    ``called``: when the driver was called, in monotonic nanoseconds: limits count from there.
    """
    return _attempt(request, _Shared(held), _processes.ready(call), called)


class _Shared:
    """What the attempts of one launch share: its other hosts, and ports that were held before."""

    def __init__(self, held: ports.PortLease | None) -> None:
        self._held = held
        self._others: Any = None

    def take_held(self) -> ports.PortLease | None:
        """Return the ports that were held before, once; the caller owns them then."""
        held, self._held = self._held, None
        return held

    def others_of(self, plan: JobPlan) -> Any:
        """Return the other hosts of the plan; None where this host is the only one."""
        if plan.meeting is not None and self._others is None:
            self._others = _registry.require("hosts", "OtherHosts")()
        return self._others


@_processes.standard_numbers_taken()
def _attempt(request: Request, shared: _Shared, call: Call, called: int = 0) -> Launch:
    """Make one attempt, from facts to replicas; ``called``: when it was asked for, if before."""
    called = called or time.monotonic_ns()
    _refuse_too_many(request.nprocs)
    known = host_facts()
    request = with_uses(request, call.fn, known)
    draft = planner.plan(request, known)
    if call.settings.stays and draft.meeting is not None:
        raise PlanError(
            f"xmp.gang: the plan has {len(draft.hosts)} hosts ({draft.why}), and a gang stays on "
            "one. Use xmp.launch, or unset what names the other hosts",
            code="XMP-P09",
        )
    others = shared.others_of(draft)
    if others is not None:
        known = others.facing(known, draft.meeting, call.settings.limits, called)
        draft = planner.plan(request, known)
    call = _processes.settled(call, draft)
    try:
        _check(draft, call, known)
        return _started(request, call, known, draft, called, shared)
    except XmpError as error:
        add_choice(error, draft.choice)
        raise


def for_hosts(request: Request, call: Call, apart: HostFacts) -> tuple[Request, JobPlan]:
    """Return the request for launchers of other hosts, and the plan that the first of them makes.

    ``apart`` are its facts: it has loaded nothing, and does not know the function. Raise PlanError
    for what they would refuse.
    """
    here = host_facts()
    request = with_uses(request, call.fn, here)
    known = replace(apart, loaded=here.loaded)
    hinted = _with_companions(_hinted(call, planner.plan(request, known), known))
    loaded = tuple(dict.fromkeys((*request.imports, *known.loaded, *hinted)))
    request = replace(request, imports=loaded)
    draft = planner.plan(request, apart)
    try:
        _check(draft, call, known)
    except XmpError as error:
        add_choice(error, draft.choice)
        raise
    return request, draft


def expected_imports(request: Request, call: Call) -> tuple[str, ...] | None:
    """Return packages that templates of other hosts can import before there is a plan.

    These are the ones that this process has loaded, and frameworks that the function names. None
    for a start method without templates.
    """
    if call.settings.start_method != "forkserver":
        return None
    known = host_facts()
    named = names_used(call.fn)
    hinted = (name for name in _COMPANIONS if name in named and known.frameworks.get(name))
    found = _with_companions(name for name in hinted if not is_the_programs_own(name))
    return tuple(dict.fromkeys((*request.imports, *known.loaded, *found)))


def with_uses(request: Request, fn: Callable[..., Any], known: HostFacts) -> Request:
    """Add the frameworks that the function imports, which may decide the runtime."""
    if request.runtime is not None or request.uses or request.imports:
        return request
    families = dict.fromkeys(each.family for each in runtimes.runtimes() if each.family)
    if families.keys() & {*known.loaded}:
        return request
    inside = {name.partition(".")[0] for name in modules_imported(fn)}
    used = (name for name in families if name in inside and not is_the_programs_own(name))
    return replace(request, uses=tuple(used))


def _check(draft: JobPlan, call: Call, known: HostFacts) -> None:
    """Refuse what cannot be launched, and warn of what the user should know."""
    refuse_unready(draft)
    _refuse_unseen(draft, call.settings.limits)
    _refuse_variables()
    if call.settings.program:
        _refuse_threads(draft)
    check_read_at_import(draft, call.settings.start_method, known.env, known.loaded)
    warnings = check_launcher(runtimes.get(draft.runtime), known)
    for line in warnings if call.settings.start_method != "fork" else ():
        log.warning(line, once=True)
    _explain(draft)


def _started(
    request: Request,
    call: Call,
    known: HostFacts,
    draft: JobPlan,
    called: int,
    shared: _Shared,
) -> Launch:
    """Hold the ports, write the plan's files, and start the replicas."""
    others = shared.others_of(draft)
    needs = draft.needs if others is None else others.needs_of(draft, call, known, called)
    held = ExitStack()
    try:
        lease = held.enter_context(shared.take_held() or ports.lease(needs))
        log.debug("ports held: %s", lease.ports)
        plan = planner.plan(request, known, lease.ports)
        plan = planned_files.write(plan, held.callback)
        if call.settings.program:
            plan = planned_files.with_error_files(plan, held.callback)
        hinted = _hinted(call, plan, known)
        plan = replace(plan, preload=_with_companions((*plan.preload, *hinted)))
        if call.relay is not None:  # no other host starts either, if this one cannot write
            _processes.make_log_files(call, plan)
        hosts = None if others is None else others.meet(call, lease.descriptors)
        leases = {name: each for name, each in lease.descriptors.items() if name != "carrier"}
        started = _processes.start(call, plan, called, leases, held.close, hosts)
    except BaseException as error:
        held.close()
        if others is not None:
            others.leave()
        if (
            isinstance(error, StartError)
            and call.settings.start_method == "fork"
            and known.initialised
        ):
            # The engine counts threads and files, but does not know to which library they belong.
            text = f"{error._plain}. {'; '.join(touched(known))}"
            raise StartError(text, code=error.code) from error
        raise
    lease.handed_over()
    return started


@_processes.standard_numbers_taken()
def launch_bare(nprocs: int, call: Call, join: bool) -> ProcessContext[Any] | Results[Any]:
    """Launch by the engine alone: no devices, ports or variables of xmp's."""
    called = time.monotonic_ns()
    _refuse_too_many(nprocs)

    def attempt(call: Call) -> Launch:
        replicas = tuple(ReplicaPlan(rank=i, local_rank=i, process=i) for i in range(nprocs))
        host = HostPlan(0, "127.0.0.1", replicas)
        bare = _bare_plan()
        preload = _with_companions((*bare.preload, *_hinted(call, bare, host_facts())))
        plan = replace(bare, world_size=nprocs, hosts=(host,), preload=preload)
        return _processes.start(_processes.settled(call, plan), plan, called)

    return _processes.launch(call, attempt, join)


@_processes.standard_numbers_taken()
def warm_up(packages: Iterable[str]) -> None:
    """Start a template that imports these packages, unless templates are switched off."""
    with signals.deferred():
        plan = _bare_plan()
        _processes.warm_up(plan, _with_companions((*plan.preload, *packages)))


def _explain(plan: JobPlan) -> None:
    """Log what was chosen, and why."""
    others = f"; also possible: {', '.join(plan.others)}" if plan.others else ""
    log.debug("runtime %s: %s%s", plan.runtime, plan.why, others)
    for note in plan.notes:
        log.debug("plan: %s", note)


def refuse_unready(plan: JobPlan) -> None:
    """Raise PlanError for a runtime that xmp can plan but not launch yet."""
    if plan.framework and importlib.util.find_spec(plan.framework) is None:
        raise PlanError(
            f"runtime={plan.runtime!r}: xmp can plan it (xmp plan) but not launch it yet; "
            'launch with runtime="cpu", "jax" or "cuda"',
            code="XMP-P06",
        )


def _refuse_too_many(nprocs: int | None) -> None:
    """Raise PlanError for more replicas than this host can carry: before a plan that long."""
    with signals.deferred():
        why = resources.too_many(nprocs or 0)
    if why:
        raise PlanError(f"nprocs={nprocs}: {why}", code="XMP-P03")


def _are_threads(plan: JobPlan) -> bool:
    """Return whether several replicas of this host share a process."""
    replicas = plan.hosts[0].replicas
    return len({replica.process for replica in replicas}) < len(replicas)


def _refuse_threads(plan: JobPlan) -> None:
    """Refuse to run a script in each of several threads: a process has one ``__main__``."""
    if _are_threads(plan):
        raise PlanError(
            f"runtime={plan.runtime!r} on this host has several replicas in one process, as "
            "threads, and a script needs a process: start its function with xmp.spawn, or use "
            'runtime="jax"',
            code="XMP-P11",
        )


def _refuse_unseen(plan: JobPlan, limits: Limits | None) -> None:
    """Refuse ``hang_timeout`` for threads: xmp sees the progress of main threads alone."""
    if _are_threads(plan) and limits is not None and limits.hang is not None:
        raise PlanError(
            f"hang_timeout={limits.hang / 1e9:g}: runtime={plan.runtime!r} on this host has "
            "several replicas in one process, as threads, whose progress xmp cannot see; give "
            'timeout= instead, or runtime="jax"',
            code="XMP-P11",
        )


def _refuse_variables() -> None:
    """Refuse a wrong XMP_HANG_NOTICE or XMP_CHECK here; supervisor and replicas read them."""
    try:
        limit_of(os.environ)
    except ValueError as error:
        raise PlanError(str(error), code="XMP-P01") from None
    check = os.environ.get("XMP_CHECK", "")
    if check.strip().lower() not in ("", "0", "off", "no", "false", "1", "on", "yes", "true"):
        raise PlanError(
            f"XMP_CHECK is {check!r}; it must be 0 (calls of collectives are not compared) or 1 "
            "(those of several hosts are, too)",
            code="XMP-P01",
        )


def _bare_plan() -> JobPlan:
    """Return the cpu plan without its devices, for what it says about templates and forks.

    It concerns this host alone: processes without ranks of a job need not know the other hosts.
    """
    known = host_facts()
    known = replace(known, env={**known.env, "NNODES": "1", per_device.NESTED: "1"})
    plan = planner.plan(Request(nprocs=1, runtime="cpu"), known)
    return replace(plan, runtime="", why="", framework="", needs=(), notes=())
