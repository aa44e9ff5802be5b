"""Legacy torch_xla, up to 2.0: one local service per host owns the devices, replicas are clients.

Only ordinal 0 keeps the variables that configure the devices: the C++ client tries these first.
torch_xla of that age can no longer be installed: the plans follow its source (pytorch/xla,
``torch_xla/distributed/xla_multiprocessing.py`` and ``third_party/xla_client/``, at b6dc88078d).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from xmp._plan.clusters._base import Cluster
from xmp._plan.clusters._host_texts import split_port
from xmp._plan.numbers import is_number
from xmp._plan.runtimes._base import Fit, Job, Place, Runtime, Share, version_of
from xmp._plan.runtimes._gpus import CUDA_MASK, visible_gpus
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, PortNeed, Request

__all__ = ["Xrt"]

CONFIG = "XRT_TPU_CONFIG"  # "tpu_worker;0;10.0.0.2:8470|tpu_worker;1;10.0.0.3:8470"
LOCAL_WORKER = "XRT_LOCAL_WORKER"  # "c_tpu_worker:0"
TPUS = "TPU_NUM_DEVICES"  # "8"; empty means 8 too
GPUS = "GPU_NUM_DEVICES"
WORKERS = "XRT_WORKERS"  # "localservice:0;grpc://10.0.0.2:4000"; grpc:// may be missing
DEVICE_MAP = "XRT_DEVICE_MAP"
SERVICE = "XRT_MESH_SERVICE_ADDRESS"  # "host:8477"
WORLD = "XRT_SHARD_WORLD_SIZE"  # hosts on input, replicas on output
ORDINAL = "XRT_SHARD_ORDINAL"
LOCAL_ORDINAL = "XRT_SHARD_LOCAL_ORDINAL"
DEVICE = "XRT_MULTI_PROCESSING_DEVICE"  # "TPU:3"
PARTS = (LOCAL_WORKER, WORKERS, DEVICE_MAP)
"""Parts of a configuration: without the rest they are an error, as in torch_xla's own spawn."""
SERVICE_PORT = 8477
WORKER_PORT = 4000
HOST_PORT = r"(?P<host>[\w.-]+|\[[^]]+\]):(?P<port>\d+)"
FORMS = {
    CONFIG: ("NAME;ORD;HOST:PORT", re.compile(rf"(?P<name>[\w-]+);(?P<ord>\d+);{HOST_PORT}")),
    WORKERS: (
        "NAME:ORD;grpc://HOST:PORT",
        re.compile(rf"(?P<name>[\w-]+):(?P<ord>\d+);(grpc://)?{HOST_PORT}"),
    ),
}


@dataclass(frozen=True)
class Setup:
    """The inherited configuration: kind and number of devices, hosts, and this host's index."""

    kind: str
    devices: int
    hosts: int
    index: int
    workers: tuple[tuple[str, int], ...] = ()
    """Name and first port of every host, where XRT_WORKERS lists them."""


class Xrt(Runtime):
    """TPUs or GPUs through the XRT services: a replica for each device, or a single one."""

    name = "xrt"
    framework = "xmp.plugins.xrt.framework"
    family = "torch_xla"
    package = "torch_xla"
    # GPU_NUM_DEVICES, TPU_NUM_DEVICES and XRT_TPU_CONFIG are configuration, not identity.
    owned = (
        *(WORKERS, DEVICE_MAP, WORLD, ORDINAL, LOCAL_ORDINAL, DEVICE, LOCAL_WORKER, SERVICE),
        *(CONFIG, TPUS, GPUS, CUDA_MASK),
    )

    def configured(self, facts: HostFacts) -> str:
        version = version_of(facts, "torch_xla")
        named = [name for name in (CONFIG, TPUS, GPUS, *PARTS) if name in facts.env]
        if not version or version >= (2, 1) or not named:
            return ""
        if named[0] in PARTS and "XMP_DEVICE" in facts.env:
            return ""  # in a replica, which has its own part only
        return f"{named[0]} is set and torch_xla {facts.frameworks['torch_xla']} is older than 2.1"

    def possible(self, facts: HostFacts) -> str:
        return self.configured(facts)

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        if version_of(facts, "torch_xla") >= (2, 1):
            raise PlanError(
                f"runtime 'xrt' needs torch_xla up to 2.0; {facts.frameworks['torch_xla']} no "
                'longer has XRT. Use runtime="pjrt".',
                code="XMP-P06",
            )
        setup = _setup(facts)
        name = TPUS if setup.kind == "TPU" else GPUS
        allowed = tuple(sorted({1, setup.devices}))
        return Fit(setup.devices, allowed, f"{setup.devices} {setup.kind} devices ({name})")

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        facts = job.places[0].facts
        setup = _setup(facts)
        own = []
        if job.world > 1 and not facts.env.get(SERVICE) and job.places[0].index == 0:
            own.append(_service(job))
        if setup.kind == "GPU":
            own += [_worker(setup, i) for i in range(job.local)]
        return tuple(own)

    def share(self, job: Job, place: Place, local: int) -> Share:
        setup = _setup(place.facts)
        ordinal = place.index * job.local + local
        given = {
            WORLD: str(job.world),
            ORDINAL: str(ordinal),
            LOCAL_ORDINAL: str(local),
            DEVICE: f"{setup.kind}:{ordinal}",
        }
        if job.world > 1:
            given[SERVICE] = _service_address(job, place.facts, setup)
        kind = _tpu if setup.kind == "TPU" else _gpu
        given |= kind(job, place.facts, setup, local, ordinal)
        return Share(given, f"{setup.kind.lower()}:{local}", {"device_type": "xla"})

    def cluster(self, facts: HostFacts) -> Cluster | None:
        setup = _setup(facts)
        if setup.hosts == 1:
            return None
        known = tuple(host for host, _ in setup.workers)
        service = split_port(facts.env.get(SERVICE, ""))[0]
        first = known[0] if known else service
        addresses = known or (first, *("" for _ in range(setup.hosts - 1)))
        return Cluster(f"{LOCAL_WORKER}, {WORLD}", setup.index, addresses, first)


def _setup(facts: HostFacts) -> Setup:
    env = facts.env
    hosts = _number(env.get(WORLD) or "1", WORLD)
    if hosts > 1 and env.get(DEVICE):
        raise PlanError(
            f"{DEVICE}={env[DEVICE]} says that this process is a replica already, where "
            f"{WORLD}={hosts} counts replicas, not hosts. Launch from outside it, or pass "
            'runtime="cpu".',
            code="XMP-P09",
        )
    if CONFIG in env or TPUS in env:
        entries = _entries(env[CONFIG], CONFIG) if env.get(CONFIG) else ()
        devices = _number(env.get(TPUS) or "8", TPUS)
        index = _index(env.get(LOCAL_WORKER), entries)
        return _checked(Setup("TPU", devices, hosts, index))
    if GPUS in env:
        entries = _entries(env[WORKERS], WORKERS) if env.get(WORKERS) else ()
        if not entries and hosts > 1:
            raise PlanError(
                f"{WORLD}={hosts} hosts with GPUs need {WORKERS}. Set it, with one entry per host.",
                code="XMP-P07",
            )
        if entries and len(entries) != hosts:
            raise PlanError(
                f"{WORKERS} names {len(entries)} hosts, but {WORLD}={hosts}. Make them equal.",
                code="XMP-P07",
            )
        workers = tuple((entry["host"], int(entry["port"])) for entry in entries)
        index = _index(env.get(LOCAL_WORKER), ())
        return _checked(Setup("GPU", _number(env[GPUS], GPUS), hosts, index, workers))
    given = ", ".join(f"{name}={env[name]}" for name in PARTS if name in env)
    found = f"{given} without the configuration that it belongs to" if given else "no devices"
    raise PlanError(
        f"runtime 'xrt' finds {found}: set {CONFIG} (or {TPUS}) for TPU or {GPUS} for GPU"
        + (f", or unset {' and '.join(name for name in PARTS if name in env)}." if given else "."),
        code="XMP-P06",
    )


def _checked(setup: Setup) -> Setup:
    if setup.index >= setup.hosts:
        raise PlanError(
            f"{LOCAL_WORKER} says host {setup.index}, but {WORLD}={setup.hosts} hosts. "
            f"Allowed: 0 to {setup.hosts - 1}.",
            code="XMP-P07",
        )
    return setup


def _number(text: str, name: str) -> int:
    if not is_number(text) or int(text) < 1:
        raise PlanError(
            f"{name}={text!r} is not a number of devices or hosts. Allowed: 1 or more.",
            code="XMP-P07",
        )
    return int(text)


def _entries(text: str, name: str) -> tuple[re.Match[str], ...]:
    """Parse entries in one of ``FORMS``, by ORD; raise PlanError unless each ORD is there once."""
    shown, form = FORMS[name]
    found = []
    for part in text.split("|"):
        match = form.fullmatch(part.strip())
        if match is None:
            raise PlanError(f'{name}: {part!r} is malformed. Allowed: "{shown}".', code="XMP-P07")
        found.append(match)
    found.sort(key=lambda match: int(match["ord"]))
    if [int(match["ord"]) for match in found] != list(range(len(found))):
        raise PlanError(
            f"{name}={text!r}: ORD must be each of 0 to {len(found) - 1} once.", code="XMP-P07"
        )
    return tuple(found)


def _index(text: str | None, entries: tuple[re.Match[str], ...]) -> int:
    if not text:
        return int(entries[0]["ord"]) if entries else 0
    found = re.fullmatch(r"[\w-]+(?::(\d+))?", text)
    if found is None:
        raise PlanError(
            f'{LOCAL_WORKER}={text!r} is malformed. Allowed: "NAME:ORD".', code="XMP-P07"
        )
    return int(found[1] or 0)


def _tpu(job: Job, facts: HostFacts, setup: Setup, local: int, ordinal: int) -> dict[str, str]:
    given = {LOCAL_WORKER: facts.env.get(LOCAL_WORKER) or _first_worker(facts)}
    if ordinal == 0:
        # Ordinal 0 initialises the TPU mesh for all replicas.
        given |= {name: facts.env[name] for name in (CONFIG, TPUS) if name in facts.env}
    return {name: value for name, value in given.items() if value or name != LOCAL_WORKER}


def _first_worker(facts: HostFacts) -> str:
    if not facts.env.get(CONFIG):
        return ""
    first = _entries(facts.env[CONFIG], CONFIG)[0]
    return f"{first['name']}:{first['ord']}"


def _gpu(job: Job, facts: HostFacts, setup: Setup, local: int, ordinal: int) -> dict[str, str]:
    visible = visible_gpus(facts.env.get(CUDA_MASK), facts.gpus.get("count") or setup.devices)
    if len(visible) < job.local:
        mask = f"{CUDA_MASK}={facts.env.get(CUDA_MASK)!r}"
        raise PlanError(
            f"{GPUS}={facts.env[GPUS]}, but {mask} leaves {len(visible)}. Make them equal.",
            code="XMP-P07",
        )
    return {
        **job.once("workers", lambda: _gpu_workers(job, setup)),
        LOCAL_WORKER: f"localservice:{ordinal}",
        CUDA_MASK: visible[local],
    }


def _gpu_workers(job: Job, setup: Setup) -> dict[str, str]:
    """Return the variables with one endpoint per replica of the job.

    The ports of a host of ``XRT_WORKERS`` count up from its first port; others are leased.
    """
    hosts = setup.workers or (("127.0.0.1", 0),)
    endpoints = []
    for host, first in hosts:
        for i in range(job.local):
            port = first + i if setup.workers else job.port(_worker(setup, i))
            endpoints.append(f"grpc://{host}:{port}")
    device = "/job:localservice/replica:0/task:{0}/device:XLA_GPU:0"
    return {
        WORKERS: "|".join(f"localservice:{g};{e}" for g, e in enumerate(endpoints)),
        DEVICE_MAP: "|".join(f"GPU:{g};{device.format(g)}" for g in range(len(endpoints))),
    }


def _service_address(job: Job, facts: HostFacts, setup: Setup) -> str:
    given = facts.env.get(SERVICE)
    if given:
        return given
    if setup.hosts == 1:
        return f"127.0.0.1:{job.port(_service(job))}"
    if setup.workers:
        return f"{setup.workers[0][0]}:{SERVICE_PORT}"
    raise PlanError(
        f"{WORLD}={setup.hosts} hosts meet at {SERVICE}, which is not set. Set it to "
        f"HOST:{SERVICE_PORT} of the first host, the same on every host.",
        code="XMP-P07",
    )


def _service(job: Job) -> PortNeed:
    fixed = SERVICE_PORT if job.hosts > 1 else 0
    return PortNeed("mesh", "hold", job.coordinator.strip("[]"), fixed, SERVICE_PORT)


def _worker(setup: Setup, local: int) -> PortNeed:
    name = f"worker.{setup.index}.{local}"
    if not setup.workers:
        return PortNeed(name, "hold", documented=WORKER_PORT + local, host=setup.index)
    host, first = setup.workers[setup.index]
    return PortNeed(name, "hold", host.strip("[]"), first + local, first + local, setup.index)
