"""The planner: the plan of a launch, from a request and the facts of its hosts.

The same request on the same facts always gives the same plan, so a plan can be printed, stored,
compared, and tested with the recorded facts of hosts that are not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xmp._words.errors import PlanError
from xmp._words.types import (
    ForkRules,
    HostFacts,
    HostPlan,
    JobPlan,
    Pairs,
    PortNeed,
    ReplicaPlan,
    Request,
)

from .clusters import Placement, manual, placement
from .plan_json import facts_from_json, facts_to_json, reported, to_json
from .plan_text import explain
from .runtime_choice import GENERIC, NAMED, choose, said_of
from .runtimes import Job, Place, Runtime, Share
from .runtimes._cores import bound_cores, thread_count, thread_source
from .runtimes._known_variables import FIRST_USE, IMPORT_TIME, QUIET
from .runtimes._meeting import carrier_need, check_meeting, meeting, store_need
from .runtimes._replica_variables import (
    common,
    dropped,
    env_by_rank,
    env_of_all,
    in_files,
    replaced,
    still_too_long,
    unset,
)
from .runtimes._request_checks import (
    check_environment,
    check_installed,
    check_names,
    check_nesting,
    check_types,
    count,
    touched,
)

__all__ = [
    "choose", "explain", "facts_from_json", "facts_to_json", "plan", "reported", "to_json",
    "with_imports",
]  # fmt: skip

AUTOLOADED = "torch_tpu"
NEVER_PRELOADED = ("torch_xla", AUTOLOADED)
"""Importing them may query the metadata server, start threads or take libtpu's lock."""

DRIVER_PROBES = (("libcuda.so.1", "cuDeviceGetCount", 3),)  # 3 is CUDA_ERROR_NOT_INITIALIZED
DEVICE_FILES = (
    *("/dev/accel*", "/dev/vfio/[0-9]*", "/dev/neuron[0-9]*", "/dev/kfd"),
    "/tmp/libtpu_lockfile",  # libtpu locks it while it owns the chips
)


def plan(
    request: Request,
    facts: HostFacts | Sequence[HostFacts],
    ports: Mapping[str, int] | None = None,
) -> JobPlan:
    """Plan ``request`` for one host, or for several hosts whose facts are all known.

    Without ``ports`` the plan has the documented numbers, so that a printed plan is complete. To
    launch, lease ``plan.needs`` and call again with ``{need.name: port}``. Raise PlanError for a
    request that does not fit, TypeError for a value of the wrong type.
    """
    known = (facts,) if isinstance(facts, HostFacts) else tuple(facts)
    if not known:
        raise PlanError("facts=[] names no host. Give the facts of at least one.", code="XMP-P01")
    check_types(request)
    known = tuple(with_imports(request, facts) for facts in known)
    chosen = choose(request, known[0])
    choice = said_of(chosen, request, known[0])
    known = tuple(_with_extra(request, facts) for facts in known)
    where = _placed(request, known, chosen[0])
    try:
        made = _planned(request, known, chosen, where, ports or {})
    except PlanError as error:
        error.args = ("\n".join(filter(None, [error._plain, choice])),)
        raise
    return replace(made, choice=choice)


def _planned(
    request: Request,
    known: tuple[HostFacts, ...],
    chosen: tuple[Runtime, str, tuple[str, ...]],
    where: Placement,
    ports: Mapping[str, int],
) -> JobPlan:
    runtime, why, others = chosen
    check_installed(runtime, known[0])
    check_names(runtime, request)
    local, reason = count(runtime, request, where.places, len(where.addresses))
    job = Job(
        request=request,
        places=where.places,
        addresses=where.addresses,
        local=local,
        coordinator=where.coordinator,
        coordinator_port=where.port,
        leasable=where.leasable,
        name=where.job,
        open=where.open,
        ports=ports,
    )
    check_environment(runtime, job)
    hosts = tuple(
        in_files(_host(runtime, job, place), runtime.from_files(place.facts))
        for place in where.places
    )
    check_nesting(known[0], hosts[0].replicas[0].device)
    made = _job_plan(runtime, why, others, job, hosts)
    return replace(made, sources=_sources(job, reason, where.source))


def _placed(request: Request, known: tuple[HostFacts, ...], runtime: Runtime) -> Placement:
    """Return the hosts of the job: as the request describes them, else as the facts show them."""
    by_hand = None
    if request.world is not None:
        # Each host has as many replicas as this host alone would have.
        local, _ = count(runtime, request, (Place(0, known[0].address, known[0]),), 1)
        by_hand = manual.by_hand(request.world, local)
    return placement(known, runtime.on_tpu(known[0]), runtime.cluster(known[0]), by_hand)


def _with_extra(request: Request, facts: HostFacts) -> HostFacts:
    """Return the facts with the variables of ``env=``, where it has one entry for all replicas."""
    if request.env is None or len(request.env) != 1:
        return facts
    return replace(facts, env={**facts.env, **dict(request.env[0])})


def with_imports(request: Request, facts: HostFacts) -> HostFacts:
    """Return the facts as if this process had imported what the program will import."""
    roots = dict.fromkeys(name.partition(".")[0] for name in request.imports)
    new = [name for name in roots if facts.frameworks.get(name) and name not in facts.loaded]
    return replace(facts, loaded=(*facts.loaded, *new)) if new else facts


def _job_plan(
    runtime: Runtime,
    why: str,
    others: tuple[str, ...],
    job: Job,
    hosts: tuple[HostPlan, ...],
) -> JobPlan:
    facts = job.places[0].facts
    first = hosts[0].replicas[0]
    said = (*job.request.notes, *runtime.notes(job))
    notes = (*dropped(runtime, job, first), *replaced(runtime, job, first), *said)
    notes = (*notes, *still_too_long(hosts))
    return JobPlan(
        runtime=runtime.name,
        why=why,
        world_size=job.world,
        hosts=hosts,
        notes=tuple(dict.fromkeys((*notes, *touched(facts)))),
        others=others,
        framework=runtime.framework,
        preload=_preload(runtime, job.request, job.places[0].facts),
        # Without chips an import of torch_xla queries no metadata server: a template may try it.
        not_preloaded=NEVER_PRELOADED if job.places[0].facts.tpu else (AUTOLOADED,),
        needs=_needs(runtime, job),
        meeting=meeting(job),
        fork_rules=_fork_rules(runtime, job.places[0].facts),
        import_variables=IMPORT_TIME,
        first_use_variables=(*FIRST_USE, *runtime.by_call),
        env=env_of_all(job.request),
        env_by_rank=env_by_rank(job.request),
    )


def _sources(job: Job, replicas: str, hosts: str) -> Pairs:
    facts = job.places[0].facts
    omp = dict(_extra(job.request, 0)).get("OMP_NUM_THREADS", facts.env.get("OMP_NUM_THREADS"))
    return (
        ("replicas", replicas),
        ("hosts", hosts),
        ("threads", thread_source(job.request.threads, omp, facts, job.local)),
    )


def _host(runtime: Runtime, job: Job, place: Place) -> HostPlan:
    base = common(runtime, job, place)
    replicas = tuple(_replica(runtime, job, place, base, local) for local in range(job.local))
    return HostPlan(place.index, place.address, replicas)


def _replica(
    runtime: Runtime, job: Job, place: Place, base: Mapping[str, str], local: int
) -> ReplicaPlan:
    share = runtime.share(job, place, local)
    extra = dict(_extra(job.request, local))
    omp = extra.get("OMP_NUM_THREADS", place.facts.env.get("OMP_NUM_THREADS"))
    threads = thread_count(job.request.threads, omp, place.facts, job.local)
    rank = place.index * job.local + local
    given = {
        **base,
        **_ranks(share, rank, local),
        "OMP_NUM_THREADS": str(threads),
        **share.set,
        "XMP_DEVICE": share.device,
        **extra,
    }
    return ReplicaPlan(
        rank=rank,
        local_rank=local,
        process=local if share.process is None else share.process,
        set=tuple(sorted(given.items())),
        unset=unset(runtime, job, place, given),
        device=share.device,
        threads=threads,
        cpus=bound_cores(job.request.bind, place.facts, local, job.local),
        settings=tuple(sorted(_settings(runtime, job, place, share).items())),
    )


def _ranks(share: Share, rank: int, local: int) -> dict[str, str]:
    """Return torch's rank variables; none for replicas that share a process and environment."""
    if share.settings.get("threads_per_process", "1") != "1":
        return {}
    return {"RANK": str(rank), "LOCAL_RANK": str(local)}


def _extra(request: Request, local: int) -> Pairs:
    entries = request.env or ((),)
    return entries[local] if len(entries) > 1 else entries[0]


def _settings(runtime: Runtime, job: Job, place: Place, share: Share) -> dict[str, str]:
    settings = dict(share.settings)
    endpoints = runtime.endpoints(job, place)
    if endpoints:
        settings["endpoints"] = endpoints
    if runtime.default_backend:
        settings["default_backend"] = runtime.default_backend
    if job.request.backend is not None:
        auto = job.request.backend == "auto"
        settings["backend"] = runtime.default_backend if auto else job.request.backend
    elif job.request.grouped and _can_group(runtime, place.facts, settings):
        settings["backend"] = runtime.default_backend
    if job.request.late:
        settings["late"] = "1"
    if _jax_is_apart(runtime, job.request, place.facts):
        settings["jax_apart"] = "1"
    return settings


def _jax_is_apart(runtime: Runtime, request: Request, facts: HostFacts) -> bool:
    """Return whether xmp chose another runtime, unasked, for a program that may use JAX."""
    chosen = request.runtime is None and not facts.env.get(NAMED)
    return chosen and runtime.family != "jax" and bool(facts.frameworks.get("jax"))


def _can_group(runtime: Runtime, facts: HostFacts, settings: Mapping[str, str]) -> bool:
    """Return whether the replicas can form a process group; threads of one process cannot."""
    alone = settings.get("threads_per_process", "1") == "1"
    return bool(runtime.default_backend and facts.frameworks.get(GENERIC) and alone)


def _needs(runtime: Runtime, job: Job) -> tuple[PortNeed, ...]:
    store = (store_need(job),) if runtime.has_store(job) and job.places[0].index == 0 else ()
    first_of_many = not job.leasable and job.places[0].index == 0
    carrier = (carrier_need(job),) if first_of_many else ()
    needs = (*store, *carrier, *runtime.needs(job))
    check_meeting(job, needs)
    return needs


def _preload(runtime: Runtime, request: Request, facts: HostFacts) -> tuple[str, ...]:
    """Return what a template may import.

    These are the launcher's packages and the program's, but not the two that look for chips, and
    the installed packages that every replica will import.
    """
    wanted = [] if request.late else list(runtime.needs_packages)
    if request.backend is not None or (request.grouped and runtime.backends):
        wanted.append(GENERIC)
    installed = [name for name in wanted if facts.frameworks.get(name)]
    imports = (*facts.loaded, *request.imports)
    loaded = [name for name in imports if name.partition(".")[0] not in NEVER_PRELOADED]
    return tuple(dict.fromkeys((*loaded, *installed)))


def _fork_rules(runtime: Runtime, facts: HostFacts) -> ForkRules:
    own = runtime.fork_rules
    return replace(
        own,
        device_files=tuple(dict.fromkeys((*DEVICE_FILES, *own.device_files))),
        driver_probes=tuple(dict.fromkeys((*DRIVER_PROBES, *own.driver_probes))),
        quiet=tuple(dict.fromkeys((*QUIET, *own.quiet, *_quiet_autoload(facts)))),
    )


def _quiet_autoload(facts: HostFacts) -> Pairs:
    """Return the setting that keeps ``import torch`` from importing torch_tpu before the fork.

    Importing an installed torch_tpu loads libtpu, starts a thread, and takes up to 2.5 s and 500 MB
    (torch_tpu 0.2). Replicas of the torch_tpu runtime import it after the fork.
    """
    if not facts.frameworks.get(AUTOLOADED):
        return ()
    return (("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"),)
