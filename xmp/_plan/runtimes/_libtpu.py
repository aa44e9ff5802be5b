"""The variables of one libtpu process, and the ports that the processes of a job need."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from xmp._plan.numbers import is_number
from xmp._plan.topology import HOST_SHAPES
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, PortNeed

from ._base import Job, Place, version_of
from ._tpu import (
    ADDRESSES,
    ADDRESSES_PATH,
    BOUNDS,
    CHIP_BOUNDS,
    NAMES,
    PORT,
    TASK,
    TYPE,
    VISIBLE,
    WORKER,
    Chips,
    check_slice,
    unit_bounds,
)

__all__ = [
    "chosen_units", "endpoints", "from_files", "host_process", "is_whole_host", "metrics_needs",
    "needs", "prepare", "private", "unit_process", "worker_names",
]  # fmt: skip

FIRST_PORT = 8476
SKIP = "TPU_SKIP_MDS_QUERY"  # its presence counts, whatever the value
METRICS = "TPU_RUNTIME_METRICS_PORTS"  # "8431,8432"
FIRST_METRICS_PORT = 8431
LOGS = "TPU_LOG_DIR"
ANY = "0.0.0.0"
"""libtpu listens on every interface; no variable changes that."""


def needs(job: Job, processes: int) -> tuple[PortNeed, ...]:
    """Return the ports for every process of the known hosts: slice builder's and metrics port."""
    indices = [place.index for place in job.places]
    found = [_process_need(job, host, i) for host in indices for i in range(processes)]
    return (*found, *metrics_needs(job, processes))


def metrics_needs(job: Job, processes: int) -> tuple[PortNeed, ...]:
    """Return the metrics ports of the known hosts on which the platform has not set them."""
    hosts = [place.index for place in job.places if not _kept_metrics(place, processes)]
    return tuple(_metrics_need(host, i) for host in hosts for i in range(processes))


def _process_need(job: Job, host: int, process: int) -> PortNeed:
    given = _given(job)
    documented = int(job.memo["first_port"]) + process
    fixed = 0 if job.leasable else documented
    if given:
        fixed = int(given[_task(job, host, process)].rpartition(":")[2])
    return PortNeed(f"process.{host}.{process}", "hold", ANY, fixed, documented, host)


def _metrics_need(host: int, process: int) -> PortNeed:
    name = f"metrics.{host}.{process}"
    return PortNeed(name, "hold", ANY, documented=FIRST_METRICS_PORT + process, host=host)


def _task(job: Job, host: int, process: int) -> int:
    chips: Chips = job.memo["chips"]
    processes: int = job.memo["processes"]
    return host % chips.slice.hosts * processes + process


def _given(job: Job) -> tuple[str, ...]:
    """Return the user's own choice of ports: an inherited address list of the right length."""
    return job.once("given", lambda: _inherited(job))


def _inherited(job: Job) -> tuple[str, ...]:
    chips: Chips = job.memo["chips"]
    total = job.memo["processes"] * (chips.slice.hosts if job.hosts > 1 else 1)
    entries = tuple(job.places[0].facts.env.get(ADDRESSES, "").split(","))
    fits = len(entries) == total and all(is_number(e.rpartition(":")[2]) for e in entries)
    return entries if fits and total > 1 else ()


def addresses(job: Job, place: Place) -> str:
    """Return ``host:port`` of every process of the slice of ``place``, comma-separated by task."""
    chips: Chips = job.memo["chips"]
    size = chips.slice.hosts
    first = place.index // size * size
    hosts = range(first, first + size)
    return job.once(f"addresses.{first}", lambda: ",".join(_given(job) or _addresses(job, hosts)))


def from_files(facts: HostFacts) -> Mapping[str, str]:
    """Return the variables that this host's libtpu can read from files as well."""
    return {ADDRESSES: ADDRESSES_PATH} if version_of(facts, "libtpu") >= (0, 0, 49) else {}


def _addresses(job: Job, hosts: range) -> list[str]:
    processes: int = job.memo["processes"]
    entries = []
    for host in hosts:
        name = "localhost" if job.hosts == 1 else job.addresses[host]
        if not name:
            raise PlanError(
                f"the address of host {host} is not known; libtpu needs the address of every host. "
                "Set TPU_WORKER_HOSTNAMES and TPU_WORKER_ID.",
                code="XMP-H04",
            )
        shown = f"[{name}]" if ":" in name else name
        entries += [f"{shown}:{job.port(_process_need(job, host, i))}" for i in range(processes)]
    return entries


def endpoints(job: Job, place: Place) -> str:
    """Return the address of every replica's process, by rank; empty unless the job is one slice."""
    if job.memo.get("slices") != 1:
        return ""
    return job.once("endpoints", lambda: _endpoints(job, addresses(job, place)))


def _endpoints(job: Job, listed: str) -> str:
    together = max(job.local // job.memo["processes"], 1)  # the threads of v2 and v3
    return ",".join(entry for entry in listed.split(",") for _ in range(together))


def chosen_units(job: Job, place: Place, visible: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return the units of this launch on one host; raise PlanError unless they lie in one box."""
    devices = job.request.devices
    if devices is None:
        return visible[:count]
    units = tuple(visible[index] for index in devices)
    numbers = [int(unit) for unit in units]
    start = numbers[0]
    if numbers != list(range(start, start + count)) or start % count:
        raise PlanError(
            f"devices={list(devices)}: chips {', '.join(units)} do not lie in one box. Allowed: "
            f"{count} neighbours in ascending order, the first a multiple of {count}.",
            code="XMP-P11",
        )
    return units


def unit_process(job: Job, place: Place, process: int) -> dict[str, str]:
    """Return the variables of a process that owns one unit."""
    chips: Chips = job.memo["chips"]
    processes: int = job.memo["processes"]
    whole = job.hosts > 1
    generation = chips.generation
    bounds = chips.slice.process_bounds if whole else unit_bounds(generation, processes)
    units = chosen_units(job, place, chips.visible, processes)
    each = (1, 1, 1, 1) if generation.processes_per_chip > 1 else (1, 1, 1)
    return {
        VISIBLE: units[process],
        BOUNDS: _text(bounds),
        CHIP_BOUNDS: _text(each),
        **_common(job, place, process),
    }


def is_whole_host(job: Job) -> bool:
    """Return whether one process gets all visible chips: ``nprocs=1``, no ``devices=``, a box."""
    chips: Chips = job.memo["chips"]
    boxed = len(chips.visible) == chips.total or len(chips.visible) in HOST_SHAPES
    return job.local == 1 and job.request.devices is None and boxed


def host_process(job: Job, place: Place) -> dict[str, str]:
    """Return the variables of a process that owns its host's chips, all or those of a mask."""
    chips: Chips = job.memo["chips"]
    bounds = chips.slice.host_bounds if job.hosts > 1 else (1, 1, 1)
    given = {
        BOUNDS: _text(bounds),
        CHIP_BOUNDS: _text(chips.slice.per_host),
        **_common(job, place, 0),
    }
    if len(chips.visible) < chips.total:
        given[VISIBLE] = ",".join(chips.visible)
        given[CHIP_BOUNDS] = _text(HOST_SHAPES[len(chips.visible)])
    return given


def _common(job: Job, place: Place, process: int) -> dict[str, str]:
    """Return the variables that a process has both for one unit and for a whole host."""
    task = str(_task(job, place.index, process))
    port = job.port(_process_need(job, place.index, process))
    return {
        ADDRESSES: addresses(job, place),
        PORT: str(port),
        TASK: task,
        # JAX takes its process id from this one (0.10.2, jax/_src/clusters/cloud_tpu_cluster.py),
        # libtpu from the one above.
        WORKER: task,
        **private(job, place, job.port(_process_need(job, place.index, 0))),
        **job.once(f"undescribed.{place.index}", lambda: _undescribed(job, place)),
    }


def _undescribed(job: Job, place: Place) -> dict[str, str]:
    """Return the accelerator type and the ban on metadata queries for a host without metadata.

    libtpu 0.0.51 would wait half a minute for each key, and torch_xla 2.9 could not be imported. To
    libtpu an empty SKIP counts as set, to torch_xla as unset; the SKIP that ``import jax`` writes
    is removed from replicas.
    """
    facts, skipped = place.facts, _skipped(place)
    if facts.metadata or (skipped and facts.env.get(TYPE)):
        return {}
    chips: Chips = job.memo["chips"]
    number = prod(chips.slice.chips) * chips.generation.number_per_chip
    kind = facts.env.get(TYPE) or f"{chips.generation.label}-{number}"
    return {SKIP: skipped or "1", TYPE: kind}


def _skipped(place: Place) -> str | None:
    """Return the user's or the platform's own SKIP, which replicas keep; None where unset."""
    return place.facts.env_at_start.get(SKIP, place.facts.env.get(SKIP))


def worker_names(job: Job, place: Place) -> dict[str, str]:
    """Return the variable with the slice's hosts, where torch_xla asks no metadata server.

    Otherwise torch_xla's ``get_worker_ips`` and ``get_master_ip`` say "localhost" on each host
    (2.9, ``_internal/tpu.py``). libtpu prefers the addresses of the processes, and so does JAX.
    """
    if job.hosts == 1 or not (_skipped(place) or SKIP in _undescribed(job, place)):
        return {}
    chips: Chips = job.memo["chips"]
    first = place.index // chips.slice.hosts * chips.slice.hosts
    hosts = job.addresses[first : first + chips.slice.hosts]
    return {NAMES: ",".join(hosts)} if all(hosts) else {}


def private(job: Job, place: Place, first_port: int) -> dict[str, str]:
    """Return variables for a launch's own metrics ports and log folder: two jobs' would collide."""
    return job.once(f"private.{place.index}", lambda: _private(job, place, first_port))


def _private(job: Job, place: Place, first_port: int) -> dict[str, str]:
    processes: int = job.memo["processes"]
    given = {}
    if not _kept_metrics(place, processes):
        ports = [str(job.port(_metrics_need(place.index, i))) for i in range(processes)]
        given[METRICS] = ",".join(ports)
    if LOGS not in place.facts.env:
        given[LOGS] = f"/tmp/tpu_logs_xmp_{first_port}"
    return given


def _kept_metrics(place: Place, processes: int) -> bool:
    """Return whether the platform has set the ports at which it will read metrics (GKE does)."""
    text = place.facts.env.get(METRICS, "")
    return len([part for part in text.split(",") if part]) >= processes


def prepare(job: Job, chips: Chips, processes: int, first_port: int = FIRST_PORT) -> int:
    """Store in ``job.memo`` what all its processes share, and return the number of slices."""
    if "chips" not in job.memo:
        slices = check_slice(chips, job.hosts)
        job.memo.update(chips=chips, processes=processes, slices=slices, first_port=first_port)
    count: int = job.memo["slices"]
    return count


def _text(bounds: tuple[int, ...]) -> str:
    return ",".join(str(n) for n in bounds)
