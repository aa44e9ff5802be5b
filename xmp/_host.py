"""One host's share of a launch: facts, plan, leases, then the engine.

``spawn`` calls it here; an agent of an engine calls it on another host. The first launch of a
process imports the engine (45 ms) while its template comes up, not before.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import _planner, _ports, _probe, _runtimes
from ._errors import PlanError, StartError
from ._payload.hints import names_used
from ._processes.job import Job
from ._processes.kernel import standard_numbers_taken
from ._processes.needs import Needs
from ._processes.templates import switched_off, templates
from ._processes.terminal import say_once
from ._runtimes import _launcher
from ._types import (
    HostFacts,
    HostPlan,
    JobPlan,
    Limits,
    Observer,
    Output,
    ReplicaPlan,
    Request,
)

if TYPE_CHECKING:
    from ._processes.context import ProcessContext
    from ._processes.launch import Launch
    from ._processes.restarts import Restarting
    from ._processes.telling import Telling

__all__ = [
    "Call",
    "facts",
    "launch",
    "launch_bare",
    "plan_for",
    "refuse_unready",
    "telling_to",
    "warm_up",
]


@dataclass(frozen=True)
class Call:
    """What runs in the replicas and how they are treated; what they get is the plan's part."""

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    method: str = "forkserver"
    grace: float = 5.0
    daemon: bool = False
    seed: int | None = None
    limits: Limits | None = None
    observer: Observer | None = None
    max_restarts: int = 0
    restart_count: int = 0
    """How many attempts there were before this one."""
    telling: Telling | None = None
    """The one of all attempts."""
    output: Output | None = None


_COMPANIONS = {
    "torch": ("numpy", "numpy.random", "torch.distributed", "torch.nn.parallel"),
    "jax": ("numpy.random", "jax.numpy", "jax.experimental.multihost_utils"),
}
"""What programs use next to a package but often import only inside the function: a replica that
has to import ``numpy.random`` itself takes twice as long to start as one that has not."""


_COLLECTIVES = {"init_process_group", "all_reduce", "broadcast", "all_gather", "barrier"}


def _hinted(call: Call, plan: JobPlan, known: HostFacts) -> tuple[str, ...]:
    """Frameworks that the launcher has not loaded but the function seems to use."""
    names = names_used(call.fn)
    if plan.framework.endswith("torch_dist") and not names.isdisjoint(_COLLECTIVES):
        names.add("torch")
    return tuple(name for name in _COMPANIONS if name in names and known.frameworks.get(name))


def _with_companions(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for name in names for n in (name, *_COMPANIONS.get(name, ()))))


def facts() -> HostFacts:
    """What this host says of itself; touches no device."""
    return _probe.facts()


def plan_for(request: Request, known: HostFacts | Sequence[HostFacts] | None) -> JobPlan:
    """The plan for these facts, or for this host's; raises PlanError."""
    return _planner.plan(request, _probe.facts() if known is None else known)


def launch(request: Request, call: Call) -> ProcessContext[Any]:
    """Plan, hold the ports, start. Raises PlanError and PortError before any process exists."""
    if not call.max_restarts:
        return _handle(_attempt(request, call))
    from ._processes.restarts import Restarting

    telling = telling_to(call.observer, several=True)
    all_alike = replace(call, telling=telling)

    def again(count: int, limits: Limits | None, grace: float) -> Launch:
        some = replace(all_alike, restart_count=count, limits=limits, grace=grace)
        return _attempt(request, some)

    return _handle(Restarting(again, call.max_restarts, call.limits, call.grace, telling))


@standard_numbers_taken()
def _attempt(request: Request, call: Call) -> Launch:
    """One gang, from facts to replicas."""
    called = time.monotonic_ns()
    known = _probe.facts()
    draft = _planner.plan(request, known)
    refuse_unready(draft)
    _refuse_unseen(draft, call.limits)
    if call.output is not None:
        from ._processes.logs import prepare

        prepare(call.output, draft, anew=not call.restart_count)
    told = _launcher.check(_runtimes.get(draft.runtime), known)
    for line in told if call.method != "fork" else ():
        say_once(f"xmp: {line}")
    lease, started = _ports.lease(draft.needs), None
    try:
        plan = _planner.plan(request, known, lease.ports)
        hinted = _hinted(call, plan, known)
        plan = replace(plan, preload=_with_companions((*plan.preload, *hinted)))
        with _head_start(plan, call.method):
            started = _made(_job(call, plan, lease.descriptors, called), lease.close)
            started.start()
    except BaseException as error:
        lease.close()
        if not isinstance(error, StartError):
            raise
        if call.max_restarts and started is not None and started.orphaned:
            return started  # an attempt that failed, as it would have a moment later
        if call.method == "fork" and known.initialised:
            # The engine counts threads and files; whose they are it does not know.
            raise StartError(f"{error}. {'; '.join(_launcher.touched(known))}") from error
        raise
    lease.handed_over()
    return started


@standard_numbers_taken()
def launch_bare(nprocs: int, call: Call) -> ProcessContext[Any]:
    """The engine alone: replicas without devices, ports or variables of ours."""
    replicas = tuple(ReplicaPlan(rank=i, local_rank=i, process=i) for i in range(nprocs))
    host = HostPlan(0, "127.0.0.1", replicas)
    bare = _bare_plan()
    preload = _with_companions((*bare.preload, *_hinted(call, bare, _probe.facts())))
    plan = replace(bare, world_size=nprocs, hosts=(host,), preload=preload)
    with _head_start(plan, call.method):
        launch = _made(_job(call, plan, {}, time.monotonic_ns()))
        launch.start()
    return _handle(launch)


_ENGINE = "xmp._processes.context"


@contextmanager
def _head_start(plan: JobPlan, method: str) -> Iterator[None]:
    """Start the template of the first launch: it comes up while this process imports the engine."""
    first = _ENGINE not in sys.modules and method == "forkserver" and not switched_off()
    if first:
        templates.get(Needs.of(plan))
    importlib.import_module(_ENGINE)
    try:
        yield
    except (TypeError, PlanError):
        if first:
            templates.close()  # what is refused is refused as if no process had existed
        raise


def refuse_unready(plan: JobPlan) -> None:
    """Some runtimes can be planned here before they can be launched."""
    if plan.framework and importlib.util.find_spec(plan.framework) is None:
        raise PlanError(
            f"runtime={plan.runtime!r}: xmp can plan it (xmp plan) but not launch it yet; "
            'launch with runtime="cpu", "jax" or "cuda"'
        )


def _refuse_unseen(plan: JobPlan, limits: Limits | None) -> None:
    """Progress is seen in a process's main thread, which waits while replicas are threads."""
    replicas = plan.hosts[0].replicas
    together = len({replica.process for replica in replicas}) < len(replicas)
    if together and limits is not None and limits.hang is not None:
        raise PlanError(
            f"hang_timeout={limits.hang / 1e9:g}: runtime={plan.runtime!r} on this host has "
            "several replicas in one process, as threads, whose progress xmp cannot see; give "
            'timeout= instead, or runtime="jax"'
        )


def _bare_plan() -> JobPlan:
    """What the cpu plan says of templates and forks, which holds without devices as well."""
    plan = _planner.plan(Request(nprocs=1, runtime="cpu"), _probe.facts())
    return replace(plan, runtime="", why="", framework="", needs=(), notes=())


def _job(call: Call, plan: JobPlan, leases: Mapping[str, int], called: int) -> Job:
    from ._processes.mates import by_process

    return Job(
        fn=call.fn,
        args=call.args,
        kwargs=call.kwargs or {},
        host=by_process(plan.hosts[0]),
        world_size=plan.world_size,
        method=call.method,
        plan=plan,
        leases=leases,
        grace=call.grace,
        daemon=call.daemon,
        seed=call.seed,
        called=called,
        limits=call.limits,
        telling=call.telling or telling_to(call.observer),
        restart_count=call.restart_count,
        output=call.output,
        progress=call.observer.progress if call.observer is not None else False,
    )


def telling_to(observer: Observer | None, several: bool = False) -> Telling | None:
    if observer is None or observer.events is None:
        return None
    from ._processes.telling import Telling

    return Telling(observer, several)


def _made(job: Job, release: Callable[[], None] = lambda: None) -> Launch:
    from ._processes.launch import Launch

    return Launch(job, release)


def _handle(launch: Launch | Restarting) -> ProcessContext[Any]:
    from ._processes.context import ProcessContext

    return ProcessContext(launch)


@standard_numbers_taken()
def warm_up(names: Iterable[str] | None) -> None:
    """Start a template that imports these packages, or end the templates (None)."""
    if names is None:
        templates.close()
    elif not switched_off():
        plan = _bare_plan()
        needs = Needs.of(plan, _with_companions((*plan.preload, *names)))
        templates.get(needs).prepare(needs)
        importlib.import_module(_ENGINE)  # it also ends the templates together with this process
