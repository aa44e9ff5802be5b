"""torch_xla 2.1 and later: one process per TPU chip (per core on 7x), or one process on the CPU.

On v2 and v3 a process cannot own less than a chip with two devices: it runs two threads, and each
thread is a replica. Under SPMD one process owns the whole host. Other devices belong to plug-ins of
torch_xla, which configure their processes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from xmp._plan.topology import HOST_SHAPES
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, PortNeed, Request

from . import _libtpu
from ._base import SPMD, Fit, Job, Place, Runtime, Share, is_spmd, many, version_of
from ._import_effects import after_import
from ._tpu import INPUTS, OWNED, Chips, inherited_notes, read_chips

__all__ = ["Pjrt"]

DEVICE = "PJRT_DEVICE"  # "TPU", "CPU", "NEURON", a plug-in's name; with a suffix: "TPU_PLUGIN"
RANK = "PJRT_LOCAL_PROCESS_RANK"
COUNT = "PJRT_LOCAL_PROCESS_COUNT"
CPUS = "CPU_NUM_DEVICES"
COORDINATOR_PORT = "XLA_COORDINATOR_PORT"  # of plug-ins that ask for torch_xla's coordinator
DOCUMENTED_PORT = 8547
FLAGS = (
    "--xla_tpu_use_enhanced_launch_barrier=false",
    "--xla_latency_hiding_scheduler_rerun=1",
    "--xla_tpu_prefer_async_allgather_to_allreduce=true",
    "--xla_tpu_enable_flash_attention=false",
)
FLAGS_V5 = ("--xla_enable_async_all_gather=true", "--xla_enable_async_collective_permute=true")


class Pjrt(Runtime):
    """TPU where there is one, else one replica on the CPU: torch_xla cannot join several there."""

    name = "pjrt"
    framework = "xmp._inside.frameworks.torch_xla"
    family = "torch_xla"
    package = "torch_xla"
    store = True
    default_backend = "xla"
    backends = ("xla", "gloo")
    owned = (*OWNED, DEVICE, RANK, COUNT, COORDINATOR_PORT)
    inputs = (*INPUTS, "XLA_REGISTER_INSTALLED_PLUGINS", SPMD, CPUS)

    def configured(self, facts: HostFacts) -> str:
        if _kind(facts) in ("", "NEURON") or not facts.frameworks.get("torch_xla"):
            return ""
        return f"{DEVICE}={facts.env[DEVICE]}"

    def possible(self, facts: HostFacts) -> str:
        version = version_of(facts, "torch_xla")
        if version < (2, 1):
            return ""
        text = facts.frameworks["torch_xla"]
        if facts.tpu.get("unknown"):
            return f"chips {facts.tpu['unknown']} and torch_xla {text}"
        if self.on_tpu(facts):
            chips = many(facts.tpu.get("chips", 0), f"{facts.tpu.get('generation')} chip")
            return f"{chips} and torch_xla {text}"
        return f"torch_xla {text} on " + (_plugin(facts) or "the CPU")

    def on_tpu(self, facts: HostFacts) -> bool:
        return _kind(facts) == "TPU" or (_kind(facts) == "" and bool(facts.tpu))

    def visible(self, facts: HostFacts) -> tuple[str, ...] | None:
        return read_chips(facts).visible if self.on_tpu(facts) else None

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        if _plugin(facts):
            return _plugin_fit(facts, request)
        if not self.on_tpu(facts):
            return _spmd_fit("all CPU devices") if is_spmd(facts) else _cpu_fit(request)
        chips = read_chips(facts)
        if is_spmd(facts) and request.devices is None:
            _refuse_odd_parts(chips, facts)
            return _spmd_fit(f"all {len(chips.visible)} {chips.generation.name} devices")
        threads = _threads(chips.generation.name)
        _refuse_parts(request, threads)
        units = len(chips.visible)
        reason = f"{many(units * threads, 'device')} of {chips.generation.name} chips"
        advice = (
            "This host has one chip; Kaggle's v5e-8 has eight. " if units * threads == 1 else ""
        )
        advice += 'runtime="cpu" takes any number.'
        if hosts > 1:
            most = units * threads
            return Fit(most, (most,), f"{reason} on each of {hosts} hosts", advice)
        allowed = tuple(n * threads for n in chips.counts)
        return Fit(allowed[-1], tuple(sorted({1, *allowed})), reason, advice)

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        if _plugin(job.places[0].facts):
            return (_coordinator(job),) if job.places[0].index == 0 else ()
        if not self.on_tpu(job.places[0].facts):
            return ()
        return _libtpu.needs(job, self._prepare(job))

    def share(self, job: Job, place: Place, local: int) -> Share:
        if _plugin(place.facts):
            return _plugin_share(job, place, local)
        if not self.on_tpu(place.facts):
            count = place.facts.env.get(CPUS, "1") if is_spmd(place.facts) else "1"
            given = {DEVICE: "CPU", CPUS: count, RANK: str(local), COUNT: str(job.local)}
            return Share({**given, **_fresh(place.facts, 0)}, "cpu", {"device_type": "xla"})
        processes = self._prepare(job)
        generation = job.memo["chips"].generation
        process = local * processes // job.local
        given = {
            DEVICE: "TPU",
            RANK: str(process),
            COUNT: str(processes),
            **job.once(f"fresh.{place.index}", lambda: _fresh(place.facts, generation.pci)),
            **job.once(f"names.{place.index}", lambda: _libtpu.worker_names(job, place)),
        }
        if is_spmd(place.facts) and _libtpu.is_whole_host(job):
            given |= _libtpu.host_process(job, place)
            return Share(given, "tpu:all", {"device_type": "xla", "spmd": "1"}, process)
        given |= _libtpu.unit_process(job, place, process)
        threads = _threads(generation.name) if job.local > 1 else 1
        settings = {"device_type": "xla", "threads_per_process": str(threads)}
        return Share(given, f"tpu:{_device(job, place, local, threads)}", settings, process)

    def endpoints(self, job: Job, place: Place) -> str:
        return _libtpu.endpoints(job, place)

    def from_files(self, facts: HostFacts) -> Mapping[str, str]:
        return _libtpu.from_files(facts)

    def notes(self, job: Job) -> tuple[str, ...]:
        facts = job.places[0].facts
        notes = []
        if _kind(facts) and "jax" in facts.loaded and "torch_xla" not in facts.loaded:
            notes.append(f'jax is loaded, but {DEVICE} selects pjrt: pass runtime="jax" to use JAX')
        if _plugin(facts):
            return tuple(notes)
        if not self.on_tpu(facts):
            return (*notes, *_unused_devices(facts))
        total = job.memo["chips"].slice.hosts * self._prepare(job)
        return (*notes, *inherited_notes(facts, total, job.memo["slices"] == 1))

    def _prepare(self, job: Job) -> int:
        """Store in ``job.memo`` what all processes share; return how many each host has."""
        if "processes" not in job.memo:
            chips = read_chips(job.places[0].facts)
            threads = _threads(chips.generation.name)
            _libtpu.prepare(job, chips, max(job.local // threads, 1))
        count: int = job.memo["processes"]
        return count


def _unused_devices(facts: HostFacts) -> tuple[str, ...]:
    count = facts.env.get(CPUS, "1")
    if count == "1" or is_spmd(facts):
        return ()
    # XLA's CPU client joins the participants of one compiled module, but each thread compiles its
    # own (torch_xla 2.9).
    note = f"{CPUS}={count} is replaced by 1: torch_xla's threads on the CPU hang in "
    return (f'{note}their first collective; use backend="gloo" with several replicas',)


def _kind(facts: HostFacts) -> str:
    """Return the kind of device in PJRT_DEVICE; torch_xla cuts it at the first underscore."""
    return facts.env.get(DEVICE, "").partition("_")[0].upper()


def _plugin(facts: HostFacts) -> str:
    """Return the plug-in as PJRT_DEVICE spells it; empty for the usual devices."""
    return "" if _kind(facts) in ("", "TPU", "CPU") else facts.env[DEVICE]


def _spmd_fit(what: str) -> Fit:
    advice = f"Unset {SPMD} for one replica per device."
    return Fit(1, (1,), f"with {SPMD} one process owns {what} of a host", advice)


def _refuse_odd_parts(chips: Chips, facts: HostFacts) -> None:
    """Raise PlanError where the chips that a mask leaves do not form a box for one process."""
    count = len(chips.visible)
    if count < chips.total and count not in HOST_SHAPES:
        raise PlanError(
            f"TPU_VISIBLE_CHIPS={facts.env.get('TPU_VISIBLE_CHIPS')} leaves {count} chips, which "
            f"one process with {SPMD} cannot own. Allowed: {', '.join(map(str, HOST_SHAPES))}, or "
            "unset it.",
            code="XMP-P07",
        )


def _plugin_fit(facts: HostFacts, request: Request) -> Fit:
    if _kind(facts) == "NEURON":
        raise PlanError(
            f"{DEVICE}={facts.env[DEVICE]} is not for runtime 'pjrt'. Use runtime=\"neuron\", or "
            f"set {DEVICE} to TPU or CPU.",
            code="XMP-P06",
        )
    what = f"{DEVICE}={_plugin(facts)}, a plug-in that xmp does not know"
    if is_spmd(facts):
        return _spmd_fit(f"all devices ({what})")
    if request.nprocs in (None, -1):
        raise PlanError(
            f"{what}: to count its devices would initialise it. Pass nprocs= with the number of "
            f"devices of a host, or set {DEVICE} to TPU or CPU.",
            code="XMP-P06",
        )
    return Fit(1, None, what)


def _plugin_share(job: Job, place: Place, local: int) -> Share:
    name = _plugin(place.facts)
    given = {
        DEVICE: name,
        RANK: str(local),
        COUNT: str(job.local),
        COORDINATOR_PORT: str(job.port(_coordinator(job))),
        **_fresh(place.facts, 0),
    }
    settings = {"device_type": "xla", "plugin": name}
    return Share(given, f"{_kind(place.facts).lower()}:{local}", settings)


def _coordinator(job: Job) -> PortNeed:
    fixed = 0 if job.leasable else DOCUMENTED_PORT
    return PortNeed("xla_coordinator", "hold", job.coordinator, fixed, DOCUMENTED_PORT)


def _threads(generation: str) -> int:
    return 2 if generation in ("v2", "v3") else 1


def _device(job: Job, place: Place, local: int, threads: int) -> str:
    units = _libtpu.chosen_units(job, place, job.memo["chips"].visible, job.memo["processes"])
    return str(int(units[local // threads]) * threads + local % threads)


def _refuse_parts(request: Request, threads: int) -> None:
    """Raise PlanError for what threads of one process cannot have separately."""
    if threads == 1:
        return
    if request.devices is not None:
        raise PlanError(
            f"devices={list(request.devices)}: on v2 and v3 a process owns a chip, two devices. "
            "Omit devices and pass nprocs: 2, 4 or 8.",
            code="XMP-P03",
        )
    if request.nprocs == 1:
        return
    if request.backend is not None:
        raise PlanError(
            f"backend={request.backend!r}: here {threads} replicas are threads of one process, "
            "which can be in a torch process group only once. Omit backend (xmp's and xla_model's "
            "collectives work), or pass nprocs=1.",
            code="XMP-P12",
        )
    if request.env is not None and len(request.env) > 1:
        raise PlanError(
            f"env is a function of the local rank, but here {threads} replicas are threads of one "
            "process and share its environment. Give one mapping for all.",
            code="XMP-P05",
        )


def _cpu_fit(request: Request) -> Fit:
    """Allow one replica on the CPU, or any number with ``backend="gloo"``.

    torch_xla's CPU client does not connect processes: each would silently get its own sum. With
    gloo, xmp's own collectives connect the replicas.
    """
    advice = (
        "torch_xla on the CPU cannot form a mesh across processes: use nprocs=1, or "
        'backend="gloo", with which xmp\'s own collectives connect the replicas.'
    )
    allowed = None if request.backend == "gloo" else (1,)
    return Fit(1, allowed, "torch_xla on the CPU", advice)


def _fresh(facts: HostFacts, pci: int) -> dict[str, str]:
    """Return the environment that a fresh process has after ``import torch_xla``."""
    values = {"TF_CPP_MIN_LOG_LEVEL": "1", "GRPC_VERBOSITY": "ERROR"}
    if facts.env.get("XLA_REGISTER_INSTALLED_PLUGINS", "1") == "1":
        values["PJRT_DYNAMIC_PLUGINS"] = "1"
    flags: dict[str, tuple[str, ...]] = {"XLA_FLAGS": ("--xla_cpu_enable_fast_math=false",)}
    if pci:
        v5 = pci in (0x0062, 0x0063)
        flags["LIBTPU_INIT_ARGS"] = (*FLAGS, *FLAGS_V5) if v5 else FLAGS
        values["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
        values["TPU_ML_PLATFORM"] = "PyTorch/XLA"
        values["TPU_ML_PLATFORM_VERSION"] = facts.frameworks.get("torch_xla") or ""
        values["ENABLE_RUNTIME_UPTIME_TELEMETRY"] = "1"
    if pci == 0x005E:
        values["TPU_MEGACORE"] = "megacore_dense"
    return after_import(facts, values, flags)
