"""The public functions beside ``spawn``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from xmp import _inside
from xmp._os.imports import without_collections
from xmp._words.errors import PlanError, brief

from .spawn import Args, importing, public, refuse_while_importing

if TYPE_CHECKING:
    from xmp._processes import ProcessContext
    from xmp._words.types import Bind, HostFacts, JobPlan, RuntimeName, StartMethod

__all__ = [
    "default_nprocs",
    "host_facts",
    "plan",
    "preload",
    "shutdown",
    "start_bare",
    "start_processes",
]

R = TypeVar("R")


@overload
def start_processes(
    fn: Callable[..., R],
    args: Args = ...,
    nprocs: int = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
) -> None: ...


@overload
def start_processes(
    fn: Callable[..., R],
    args: Args = ...,
    nprocs: int = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
) -> ProcessContext[R]: ...


@overload
def start_processes(
    fn: Callable[..., R],
    args: Args = ...,
    nprocs: int = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
) -> ProcessContext[R] | None: ...


@public
def start_processes(
    fn: Callable[..., R],
    args: Args = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod | None = None,
) -> ProcessContext[R] | None:
    """Run ``fn(i, *args)`` in ``nprocs`` processes, without devices: the engine alone.

    The contract of ``torch.multiprocessing.start_processes`` (torch 2.13): returns None after a
    join, and then the functions may return what cannot be pickled; else a ``ProcessContext`` whose
    ``join(timeout)`` returns True when all are done; always starts processes. Raises as ``spawn``
    does.
    """
    return start_bare(fn, args, nprocs, join, daemon, start_method, wants_results=not join)


def start_bare(
    fn: Callable[..., R],
    args: Args,
    nprocs: int,
    join: bool,
    daemon: bool,
    start_method: StartMethod | None,
    wants_results: bool,
) -> ProcessContext[R] | None:
    """Do as ``start_processes``; without ``wants_results`` every result is None."""
    from . import checks
    from .call_checks import check_function

    check_function(fn, args, None)
    method = checks.start_method("start_method", start_method)
    count = checks.whole_number("nprocs", nprocs)
    if count is None or count < 1:
        raise PlanError(
            f"nprocs={brief(nprocs)}: start_processes needs a whole number from 1 up",
            code="XMP-P01",
        )
    refuse_while_importing()
    with without_collections():
        from xmp._processes import Call
        from xmp._words.types import Settings

        from .host import launch_bare

    settings = Settings(start_method=method, daemon=daemon, wants_results=wants_results)
    call = Call(fn, args, settings=settings)
    context: Any = launch_bare(count, call, join)
    return None if join else context


@public
def plan(
    nprocs: int | None = None,
    *,
    runtime: RuntimeName | None = None,
    facts: HostFacts | Sequence[HostFacts] | None = None,
    devices: Sequence[int] | str | None = None,
    backend: str | None = None,
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    threads: int | None = None,
    bind: Bind | None = None,
) -> JobPlan:
    """Return what ``spawn`` with these arguments would do, without doing it.

    ``facts`` are recorded facts, of one host or of several; None for those of this host. A port
    that is only known once it is leased has the runtime's documented number. Touches no device.
    Raises PlanError where the request does not fit, TypeError for a value of a wrong type.
    """
    from .host import plan_for
    from .options import request_of

    request = request_of(
        nprocs=nprocs, runtime=runtime, devices=devices, backend=backend, env=env, threads=threads,
        bind=bind,
    )  # fmt: skip
    return plan_for(request, facts)


@public
def host_facts() -> HostFacts:
    """Return what this host is: CPUs, devices, environment, installed frameworks.

    ``python -m xmp facts`` prints the same. Touches no device.
    """
    from .host import host_facts

    return host_facts()


@public
def default_nprocs(runtime: RuntimeName | None = None) -> int:
    """Return how many replicas ``spawn(fn, runtime=runtime)`` starts on this host.

    Touches no device. Raises PlanError where the runtime does not fit this host.
    """
    return len(plan(runtime=runtime).hosts[0].replicas)


@public
def preload(*packages: str) -> None:
    """Start the template now, in the background, while the script does its own imports.

    ``xmp.preload("torch", "jax")`` on a script's first line makes its first ``spawn`` as fast as
    the later ones. ``xmp.shutdown()`` ends the template. Where a launch imports the script or its
    modules again, in replicas, and in a process that another launcher started for one device, it
    starts nothing. Raises TypeError for what is not a name, StartError where the process cannot be
    started.
    """
    for name in packages:
        if not isinstance(name, str) or not name:
            raise TypeError(
                f"preload({brief(name)}): give names of packages; xmp.shutdown() ends the templates"
            )
    if importing() or _in_a_launch() or _is_placed():
        return
    with without_collections():
        from .host import warm_up

    warm_up(packages)


@public
def shutdown() -> None:
    """End the templates of this process and wait until they have ended.

    Launches that still run go on: their template ends with the last of them. The next ``spawn``
    starts a new template. Does nothing where there is none.
    """
    if "xmp._calls.host" in sys.modules:  # which every launch and preload imports
        from xmp import _processes, _registry

        _processes.shutdown()
        for end in _registry.loaded("shutdown"):
            end()


def _in_a_launch() -> bool:
    """Return whether this process is one of a launch, each of which would start a template."""
    payload = sys.modules.get("xmp._payload")
    loading = payload is not None and payload.loading()
    return loading or _inside.in_a_replica()


def _is_placed() -> bool:
    """Return whether another launcher has started this process for one device."""
    from xmp._plan.clusters import per_device

    return per_device.started(os.environ) is not None
