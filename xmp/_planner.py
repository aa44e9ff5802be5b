"""Request and facts in, plan out: everything that a launch decides is decided here, by arithmetic.

The same request on the same facts always gives the same plan, so a plan can be printed, stored,
compared, and tested with recorded facts of hosts that nobody here owns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from . import _runtimes
from ._clusters import placement
from ._errors import PlanError
from ._plan_text import explain, facts_from_json, facts_to_json, to_json
from ._runtimes import Job, Place, Runtime, Share
from ._runtimes._base import matches
from ._runtimes._cores import bound_cores, thread_count
from ._runtimes._variables import FIRST_USE, IDENTITY, IMPORT_TIME, OUTER, QUIET
from ._types import ForkRules, HostFacts, HostPlan, JobPlan, Pairs, PortNeed, ReplicaPlan, Request

__all__ = ["choose", "explain", "facts_from_json", "facts_to_json", "plan", "to_json"]

STORE_PORT = 29500
GENERIC = "torch"
"""Loaded by every torch runtime's own package, so it speaks only when nothing more special does."""

DRIVER_PROBES = (("libcuda.so", "cuDeviceGetCount", 3),)  # 3 is CUDA_ERROR_NOT_INITIALIZED
DEVICE_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*", "/dev/neuron[0-9]*", "/dev/kfd")


def choose(request: Request, facts: HostFacts) -> tuple[Runtime, str, tuple[str, ...]]:
    """The runtime for ``request`` on this host, why it is that one, and which others would do.

    In this order: the argument, ``XMP_RUNTIME``, what is configured, the framework that is
    loaded, the hardware that an installed framework can use. Raises PlanError for unknown names.
    """
    able = tuple(r for r in _runtimes.runtimes() if r.automatic and r.possible(facts))
    runtime, why = _choice(request, facts, able)
    return runtime, why, tuple(r.name for r in able if r is not runtime)


def _choice(request: Request, facts: HostFacts, able: Sequence[Runtime]) -> tuple[Runtime, str]:
    if request.runtime is not None:
        return _runtimes.get(request.runtime), f"runtime={request.runtime!r}"
    named = facts.env.get("XMP_RUNTIME")
    if named:
        return _runtimes.get(named, "XMP_RUNTIME"), f"XMP_RUNTIME={named}"
    for runtime in _runtimes.runtimes():
        setting = runtime.configured(facts)
        if setting:
            return runtime, setting
    families = _loaded_families(facts, able)
    if len(families) == 1:
        first = next(r for r in able if r.family == families[0])
        return first, f"{families[0]} is loaded; {first.possible(facts)}"
    if families:
        first = next(r for r in able if r.family in families)
        return first, f"{' and '.join(families)} are loaded; {first.possible(facts)}"
    return _by_hardware(facts, able)


def _loaded_families(facts: HostFacts, able: Sequence[Runtime]) -> list[str]:
    """The frameworks that are loaded and have a runtime here, in the order of precedence."""
    families = list(dict.fromkeys(r.family for r in able if r.family in facts.loaded))
    special = [f for f in families if f.startswith(f"{GENERIC}_")]
    return [f for f in families if f != GENERIC] if special else families


def _by_hardware(facts: HostFacts, able: Sequence[Runtime]) -> tuple[Runtime, str]:
    """The first runtime that has a device to offer, else the last: the cores."""
    for runtime in able:
        if runtime.visible(facts):
            return runtime, runtime.possible(facts)
    return able[-1], "no accelerator that an installed framework can use"


def plan(
    request: Request,
    facts: HostFacts | Sequence[HostFacts],
    ports: Mapping[str, int] | None = None,
) -> JobPlan:
    """What will be done for ``request``: on this host, or on all of several.

    Without ``ports`` the documented numbers stand in for them, so that a printed plan is complete;
    lease ``plan.needs`` and call again with ``{need.name: port}``. Raises PlanError for a request
    that does not fit, TypeError for a value of the wrong type.
    """
    known = (facts,) if isinstance(facts, HostFacts) else tuple(facts)
    if not known:
        raise PlanError("facts=[] names no host. Give the facts of at least one.")
    _check_types(request)
    runtime, why, others = choose(request, known[0])
    where = placement(known)
    local = _count(runtime, request, where.places)
    job = Job(
        request=request,
        places=where.places,
        addresses=where.addresses,
        local=local,
        coordinator=where.coordinator,
        coordinator_port=where.port,
        leasable=where.leasable,
        ports=ports or {},
    )
    _check_environment(runtime, job)
    hosts = tuple(_host(runtime, job, place) for place in where.places)
    notes = (*where.notes, *_dropped(runtime, known[0], hosts[0]), *runtime.notes(job))
    return JobPlan(
        runtime=runtime.name,
        why=why,
        world_size=job.world,
        hosts=hosts,
        notes=tuple(dict.fromkeys(notes)),
        others=others,
        framework=runtime.framework,
        preload=_preload(runtime, request, known[0]),
        needs=_needs(runtime, job),
        fork_rules=_fork_rules(runtime),
        import_variables=IMPORT_TIME,
        first_use_variables=FIRST_USE,
    )


def _check_types(request: Request) -> None:
    for name, least in (("nprocs", -1), ("threads", 1)):
        value = getattr(request, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r} is a {type(value).__name__}. Allowed: an int, None.")
        if value < least or value == 0:
            raise PlanError(f"{name}={value} is not a number of {name}. Allowed: 1 or more, None.")


def _count(runtime: Runtime, request: Request, places: Sequence[Place]) -> int:
    """Replicas on each host; every host must take the same number."""
    counts = {_count_here(runtime, request, place.facts) for place in places}
    if len(counts) > 1:
        raise PlanError(
            f"the hosts differ: {sorted(counts)} replicas would fit. Say nprocs, a number that all "
            "of them take."
        )
    return counts.pop()


def _count_here(runtime: Runtime, request: Request, facts: HostFacts) -> int:
    nprocs = None if request.nprocs == -1 else request.nprocs
    if request.devices is not None:
        _check_devices(runtime, request, facts)
        if nprocs not in (None, len(request.devices)):
            raise PlanError(
                f"nprocs={nprocs} and devices={list(request.devices)} disagree. "
                f"Leave nprocs out, or make it {len(request.devices)}."
            )
        nprocs = len(request.devices)
    fit = runtime.fit(facts, request)
    if nprocs is None:
        return fit.default
    if fit.allowed is not None and nprocs not in fit.allowed:
        numbers = ", ".join(str(n) for n in fit.allowed)
        raise PlanError(
            f"nprocs={nprocs} does not fit this host: {fit.reason}. Allowed with runtime "
            f"{runtime.name!r}: {numbers}, or None for {fit.default}. {fit.advice}".rstrip()
        )
    return nprocs


def _check_devices(runtime: Runtime, request: Request, facts: HostFacts) -> None:
    devices = request.devices or ()
    visible = runtime.visible(facts)
    if visible is None:
        return  # fit() says that the runtime has none
    allowed = f"0 to {len(visible) - 1}" if visible else "none"
    if not devices:
        raise PlanError(f"devices=[] names no device. Allowed: {allowed}, or None for all.")
    for device in devices:
        if isinstance(device, bool) or not isinstance(device, int):
            raise TypeError(f"devices={list(devices)}: {device!r} is no int. Allowed: {allowed}.")
        if not 0 <= device < len(visible):
            raise PlanError(
                f"devices={list(devices)}: {device} is out of range. Allowed: {allowed} (positions "
                "in what the host's mask allows)."
            )
    if len(set(devices)) < len(devices):
        raise PlanError(f"devices={list(devices)} repeats a device. Name each one once.")


def _check_environment(runtime: Runtime, job: Job) -> None:
    """``env=`` may say everything but who a replica is, and must be one for all or one for each."""
    entries = job.request.env or ()
    if len(entries) not in (0, 1, job.local):
        raise PlanError(
            f"env= has {len(entries)} entries for {job.local} replicas. Give one mapping, or a "
            "function from the local rank to a mapping."
        )
    for name in sorted({name for entry in entries for name, _ in entry}):
        if matches(name, (*IDENTITY, *runtime.owned)):
            raise PlanError(
                f"env= names {name}, which says who a replica is or what it holds. xmp sets it; "
                "choose with nprocs= and devices=, and leave it out of env=."
            )
    backend = job.request.backend
    if backend not in (None, "auto", *runtime.backends):
        allowed = ", ".join(("auto", *runtime.backends)) if runtime.backends else "none"
        raise PlanError(
            f"backend={backend!r} does not work with runtime {runtime.name!r}. Allowed: {allowed}, "
            "or leave it out."
        )


def _host(runtime: Runtime, job: Job, place: Place) -> HostPlan:
    replicas = tuple(_replica(runtime, job, place, local) for local in range(job.local))
    return HostPlan(place.index, place.address, replicas)


def _replica(runtime: Runtime, job: Job, place: Place, local: int) -> ReplicaPlan:
    share = runtime.share(job, place, local)
    extra = dict(_extra(job.request, local))
    omp = extra.get("OMP_NUM_THREADS", place.facts.env.get("OMP_NUM_THREADS"))
    threads = thread_count(job.request.threads, omp, place.facts, job.local)
    given = {
        **_common(runtime, job, place, local),
        "OMP_NUM_THREADS": str(threads),
        **share.set,
        "XMP_DEVICE": share.device,
        **extra,
    }
    return ReplicaPlan(
        rank=place.index * job.local + local,
        local_rank=local,
        process=local if share.process is None else share.process,
        set=tuple(sorted(given.items())),
        unset=_unset(runtime, place.facts, given),
        device=share.device,
        threads=threads,
        cpus=bound_cores(job.request.bind, place.facts, local, job.local),
        settings=tuple(sorted(_settings(runtime, job, share).items())),
    )


def _extra(request: Request, local: int) -> Pairs:
    entries = request.env or ((),)
    return entries[local] if len(entries) > 1 else entries[0]


def _common(runtime: Runtime, job: Job, place: Place, local: int) -> dict[str, str]:
    """Who a replica is, in torch's words, and what keeps its traffic on this host."""
    given = {
        "RANK": str(place.index * job.local + local),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(job.world),
        "LOCAL_WORLD_SIZE": str(job.local),
        "NODE_RANK": str(place.index),
        "NNODES": str(job.hosts),
        "GROUP_RANK": str(place.index),
        "GROUP_WORLD_SIZE": str(job.hosts),
    }
    if runtime.store:
        given["MASTER_ADDR"] = job.coordinator
        given["MASTER_PORT"] = str(job.port(_store(job)))
        if job.hosts == 1 and "GLOO_SOCKET_IFNAME" not in place.facts.env:
            given["GLOO_SOCKET_IFNAME"] = "lo" if place.facts.platform == "linux" else "lo0"
    given.update(_no_proxy(job, place.facts.env))
    return given


def _no_proxy(job: Job, env: Mapping[str, str]) -> dict[str, str]:
    """Our own addresses exempted from the proxy, where the host has one at all."""
    if not any(name.lower().endswith("_proxy") and value for name, value in env.items()):
        return {}
    inherited = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if inherited.strip() == "*":
        return {}
    entries = [part.strip() for part in inherited.split(",") if part.strip()]
    ours = ("localhost", "127.0.0.1", "::1", job.coordinator)
    value = ",".join(dict.fromkeys((*entries, *ours)))
    return {"no_proxy": value, "NO_PROXY": value}


def _settings(runtime: Runtime, job: Job, share: Share) -> dict[str, str]:
    settings = dict(share.settings)
    if runtime.default_backend:
        settings["default_backend"] = runtime.default_backend
    if job.request.backend is not None:
        auto = job.request.backend == "auto"
        settings["backend"] = runtime.default_backend if auto else job.request.backend
    return settings


def _ours(runtime: Runtime) -> tuple[str, ...]:
    outer = tuple(pattern for _, patterns in OUTER for pattern in patterns)
    return (*IDENTITY, *runtime.owned, *outer)


def _unset(runtime: Runtime, facts: HostFacts, given: Mapping[str, str]) -> tuple[str, ...]:
    patterns = _ours(runtime)
    return tuple(sorted(n for n in facts.env if n not in given and matches(n, patterns)))


def _dropped(runtime: Runtime, facts: HostFacts, host: HostPlan) -> tuple[str, ...]:
    """One note for each outer launcher whose variables the replicas do not see."""
    unset = host.replicas[0].unset
    notes = []
    for launcher, patterns in (*OUTER, ("an outer launch", (*IDENTITY, *runtime.owned))):
        names = [name for name in unset if matches(name, patterns)]
        unset = tuple(name for name in unset if name not in names)
        if names:
            notes.append(f"dropped {', '.join(names)}: inherited from {launcher}")
    return tuple(notes)


def _store(job: Job) -> PortNeed:
    fixed = 0 if job.leasable else job.coordinator_port or STORE_PORT
    return PortNeed("store", "listen", job.coordinator, fixed, STORE_PORT)


def _needs(runtime: Runtime, job: Job) -> tuple[PortNeed, ...]:
    store = (_store(job),) if runtime.store and job.places[0].index == 0 else ()
    return (*store, *runtime.needs(job))


def _preload(runtime: Runtime, request: Request, facts: HostFacts) -> tuple[str, ...]:
    wanted = list(runtime.needs_packages)
    if request.backend is not None:
        wanted.append(GENERIC)
    installed = [name for name in wanted if facts.frameworks.get(name)]
    return tuple(dict.fromkeys((*facts.loaded, *installed)))


def _fork_rules(runtime: Runtime) -> ForkRules:
    own = runtime.fork_rules
    return replace(
        own,
        device_files=tuple(dict.fromkeys((*DEVICE_FILES, *own.device_files))),
        driver_probes=tuple(dict.fromkeys((*DRIVER_PROBES, *own.driver_probes))),
        quiet=tuple(dict.fromkeys((*QUIET, *own.quiet))),
    )
