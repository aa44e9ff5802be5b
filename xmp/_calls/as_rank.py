"""Run a function in this process as the rank that another launcher has given it.

No port is leased and no variable changes: torch, and what is built on it, meets at the launcher's
MASTER_ADDR. xmp chooses the device and, where ``backend=`` asks for it, forms the process group.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from xmp import _inside
from xmp._os import signals
from xmp._os.excepthook import excepthook_kept
from xmp._plan.clusters.per_device import Started
from xmp._plan.runtime_choice import add_choice, choose, said_of
from xmp._plan.runtimes import Runtime
from xmp._plan.runtimes._request_checks import check_backend, check_installed
from xmp._processes import Results, StartTimeline, Timeline, seed_all
from xmp._words.errors import PlanError
from xmp._words.replica_info import ReplicaInfo
from xmp._words.types import HostFacts, Request

from .host import host_facts

__all__ = ["run_as_rank"]

_TORCH = "xmp._inside.frameworks.torch_dist"


def run_as_rank(
    found: Started,
    request: Request,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seed: int | None,
) -> Results[Any]:
    """Call ``fn`` as that rank, with the runtime and the backend of ``request``.

    Raise PlanError before the call where they do not fit this host, then what ``fn`` raises.
    """
    timeline = Timeline(called=time.monotonic_ns())
    info, module = _place(found, request, host_facts())
    with excepthook_kept(), _installed(info, module):
        if seed is not None:
            seed_all(seed)
        timeline.entered = time.monotonic_ns()
        try:
            with signals.apart():
                value = fn(info.rank, *args, **kwargs)
        finally:
            timeline.left = time.monotonic_ns()
    return Results({info.rank: value}, StartTimeline({info.rank: timeline}))


def _place(found: Started, request: Request, facts: HostFacts) -> tuple[ReplicaInfo, str]:
    """Return this replica and the import path of its framework. Raise PlanError."""
    _check_size(found, request)
    chosen = choose(request, facts)
    runtime = chosen[0]
    try:
        check_installed(runtime, facts)
        check_backend(runtime, request.backend)
        backend = _backend(runtime, request, facts)
        _check_meeting(found, backend, facts)
        _check_mesh(found, runtime)
        index = _index(found, runtime, facts)
    except PlanError as error:
        add_choice(error, said_of(chosen, request, facts))
        raise
    kind = getattr(runtime, "device_type", "cpu")
    settings = {
        "device_type": kind if runtime.framework == _TORCH else "",
        "device_index": str(index or 0),
        "default_backend": runtime.default_backend,
        "backend": backend or "",
    }
    device = kind if index is None else f"{kind}:{index}"
    place = replace(found.info, runtime=runtime.name, device=device, settings=settings)
    return place, runtime.framework


def _backend(runtime: Runtime, request: Request, facts: HostFacts) -> str | None:
    """Return the backend of the process group that is ready before the function; None for none."""
    has_torch = runtime.framework == _TORCH and bool(facts.frameworks.get("torch"))
    if request.backend == "auto" or (request.backend is None and request.grouped and has_torch):
        return runtime.default_backend
    return request.backend


def _check_size(found: Started, request: Request) -> None:
    here = found.info.local_world_size
    if request.nprocs not in (None, here):
        raise PlanError(
            f"nprocs={request.nprocs}, but {found.launcher} has started {here} of its processes on "
            f"this host ({found.given}). Leave nprocs out, or have it start {request.nprocs}.",
            code="XMP-P03",
        )


def _check_meeting(found: Started, backend: str | None, facts: HostFacts) -> None:
    """Raise PlanError where a process group has no address; only torchrun sets one."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not facts.env.get(name)]
    if backend is not None and missing and found.info.world_size > 1:
        raise PlanError(
            f"the process group ({backend}) has no place to meet: {found.launcher} has not set "
            f"{' and '.join(missing)}. Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a "
            "port that is free there, in all processes.",
            code="XMP-P08",
        )


def _check_mesh(found: Started, runtime: Runtime) -> None:
    """Raise PlanError where the processes would not be connected, and each would train apart."""
    if runtime.framework == _TORCH:
        return
    if runtime.connected_by[0]:
        library, call = runtime.connected_by
        loaded = sys.modules.get(library)
        if loaded is not None and loaded.distributed.is_initialized():
            return
        advice = f"Call {library}.distributed.{call} before"
    elif found.is_torchs:
        return  # these read torchrun's variables themselves
    else:
        advice = "Start it by torchrun"
    raise PlanError(
        f"runtime {runtime.name!r} cannot connect the processes that {found.launcher} has started "
        f'({found.given}). {advice}, use runtime="cpu" or "cuda", or {found.advice}.',
        code="XMP-P09",
    )


def _index(found: Started, runtime: Runtime, facts: HostFacts) -> int | None:
    """Return the position of this rank's device; 0 where the launcher masks each process to one."""
    visible = runtime.visible(facts) if runtime.framework == _TORCH else None
    if visible is None:
        return None
    local = found.info.local_rank
    if local < len(visible):
        return local
    if len(visible) == 1:
        return 0
    raise PlanError(
        f"local rank {local} has no device: runtime {runtime.name!r} sees {len(visible)} on this "
        f"host, and {found.launcher} has started {found.info.local_world_size} processes. Start "
        'as many as there are devices, or use runtime="cpu".',
        code="XMP-P03",
    )


@contextmanager
def _installed(info: ReplicaInfo, module: str) -> Iterator[None]:
    """Make xmp's functions describe this replica."""
    framework = importlib.import_module(module).attach(info)
    around = _inside.installed()  # `xmp run` has made this process a replica: its key stays
    channel, key = (around.channel, around.key) if around else (None, None)
    _inside.install(info, framework, channel, key=key)
    try:
        if module == _TORCH:
            framework.choose_device()
        if info.settings.get("backend"):
            with signals.apart():  # it waits for the others
                framework.init_process_group()
        yield
    finally:
        _inside.uninstall()
        # A later launch in this process uses the same process group: a second one at the same
        # MASTER_ADDR would find the first one's keys in torchrun's store (torch 2.13), and fail.
        atexit.register(_leave, framework)


def _leave(framework: Any) -> None:
    """Leave before Python ends: a thread of gloo that runs on then aborts the process.

    Cycles of DistributedDataParallel hold the group after its end (torch 2.13;
    github.com/pytorch/pytorch/pull/179291).
    """
    framework.leave()
    gc.collect()
