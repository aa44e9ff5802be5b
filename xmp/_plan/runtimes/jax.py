"""JAX: one process per device, joined by ``jax.distributed`` before the user's function runs.

On TPU one process per chip (per core on 7x), or with ``nprocs=1`` JAX's own convention: one
process for the whole host.
"""

from __future__ import annotations

from collections.abc import Mapping

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, PortNeed, Request

from . import _libtpu
from ._base import Fit, Job, Place, Runtime, Share, many
from ._cores import usable_cores
from ._gpus import CUDA_MASK, amd_gpus, gpu_count, gpu_fit, place_in, visible_gpus
from ._import_effects import after_import
from ._tpu import INPUTS, OWNED, inherited_notes, read_chips
from .cpu import MOST

__all__ = ["JaxRuntime"]

PLATFORMS = "JAX_PLATFORMS"  # "cpu", "tpu,cpu", "cuda"
CPU_DEVICES = "JAX_NUM_CPU_DEVICES"  # "4"
_AS_XLA_FLAGS_SAY = "-1"
"""JAX's default for ``CPU_DEVICES``: one device, or --xla_force_host_platform_device_count."""
COORDINATOR = "JAX_COORDINATOR_ADDRESS"  # "10.0.0.1:8482"
DOCUMENTED_PORT = 8482
GPU_NAMES = {"cuda": ("cuda", "gpu"), "rocm": ("rocm", "gpu")}
BARRIER = ("--xla_tpu_use_enhanced_launch_barrier=true",)


class JaxRuntime(Runtime):
    """The first of TPU, GPU and cores that the user's setting, hardware and plugins allow."""

    name = "jax"
    framework = "xmp._inside.frameworks.jax"
    family = "jax"
    package = "jax"
    connected_by = ("jax", "initialize(address, world_size, rank)")
    owned = (
        *(COORDINATOR, "JAX_COORDINATOR_*", "JAX_LOCAL_DEVICE_IDS", "JAX_PARTITION_INDEX"),
        *OWNED,
    )
    inputs = (*INPUTS, PLATFORMS, CPU_DEVICES, CUDA_MASK)
    by_call = (PLATFORMS, CPU_DEVICES)
    needs_packages = ("jax",)

    def platform(self, facts: HostFacts) -> str:
        """Return ``tpu``, ``cuda``, ``rocm`` or ``cpu``; raise PlanError for an unusable one."""
        text = facts.env.get(PLATFORMS, "")
        wanted = text.split(",")[0].strip()
        if wanted == "cpu":
            return "cpu"
        able = [*self._able(facts), "cpu"]
        for platform in able:
            if not wanted or wanted in (platform, *GPU_NAMES.get(platform, ())):
                return platform
        raise PlanError(
            f"{PLATFORMS}={text} was given, but this host has no such device with an installed "
            f"JAX plugin. Possible here: {', '.join(able)}. Set {PLATFORMS} to one of them, or "
            'pass runtime="cpu".',
            code="XMP-P06",
        )

    def _able(self, facts: HostFacts) -> list[str]:
        able = []
        if facts.tpu and facts.frameworks.get("libtpu", "unknown"):
            able.append("tpu")
        if facts.frameworks.get("jax_cuda_plugin") and self._gpus(facts):
            able.append("cuda")
        if facts.frameworks.get("jax_rocm_plugin") and amd_gpus(facts):
            able.append("rocm")
        return able

    def possible(self, facts: HostFacts) -> str:
        version = facts.frameworks.get("jax")
        return f"jax {version} is installed" if version else ""

    def on_tpu(self, facts: HostFacts) -> bool:
        return self.platform(facts) == "tpu"

    def visible(self, facts: HostFacts) -> tuple[str, ...] | None:
        platform = self.platform(facts)
        if platform == "tpu":
            return ("0",) if facts.tpu.get("unknown") else read_chips(facts).visible
        if platform == "rocm":
            return amd_gpus(facts)
        return self._gpus(facts) if platform == "cuda" else None

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        platform = self.platform(facts)
        if platform == "tpu":
            return _tpu_fit(facts, hosts)
        if platform in GPU_NAMES:
            return gpu_fit(self.visible(facts) or (), facts, CUDA_MASK, self.name)
        cores = usable_cores(facts)
        return Fit(min(cores, MOST), None, f"{cores} usable cores")

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        facts = job.places[0].facts
        found = (_need(job),) if job.places[0].index == 0 else ()
        if self.platform(facts) != "tpu" or facts.tpu.get("unknown"):
            return found
        return (*found, *_libtpu.needs(job, self._prepare(job)))

    def has_store(self, job: Job) -> bool:
        """Return whether programs may use torch as well; several hosts agree only on JAX's port."""
        return job.hosts == 1 and bool(job.places[0].facts.frameworks.get("torch"))

    def share(self, job: Job, place: Place, local: int) -> Share:
        host = f"[{job.coordinator}]" if ":" in job.coordinator else job.coordinator
        address = f"{host}:{job.port(_need(job))}"
        platform = self.platform(place.facts)
        wanted = place.facts.env.get(PLATFORMS) or ("tpu,cpu" if platform == "tpu" else platform)
        given = {COORDINATOR: address, PLATFORMS: wanted}
        settings = {"coordinator": address, "platforms": wanted}
        if platform == "tpu":
            return self._on_chips(job, place, local, given, settings)
        given |= after_import(
            place.facts, {"TF_CPP_MIN_LOG_LEVEL": "1", "TPU_SKIP_MDS_QUERY": "1"}, {}
        )
        if platform in GPU_NAMES:
            mask = CUDA_MASK if platform == "cuda" else "HIP_VISIBLE_DEVICES"
            given[mask], index = place_in(self.chosen(job, place), local)
            return Share(given, f"{platform}:{index}", {**settings, "local_device_ids": str(index)})
        # It overrides a host device count in XLA_FLAGS (JAX 0.10.2), which the script may set, too.
        count = place.facts.env.get(CPU_DEVICES)
        if count:
            given[CPU_DEVICES] = count
        settings["num_cpu_devices"] = count or _AS_XLA_FLAGS_SAY
        return Share(given, "cpu", settings)

    def _on_chips(
        self, job: Job, place: Place, local: int, given: dict[str, str], settings: dict[str, str]
    ) -> Share:
        given |= job.once(f"fresh.{place.index}", lambda: _fresh(place.facts))
        if place.facts.tpu.get("unknown"):
            return Share(given, "tpu", settings)
        self._prepare(job)
        if _libtpu.is_whole_host(job):
            return Share({**given, **_libtpu.host_process(job, place)}, "tpu:all", settings)
        units = _libtpu.chosen_units(job, place, job.memo["chips"].visible, job.local)
        given |= _libtpu.unit_process(job, place, local)
        return Share(given, f"tpu:{units[local]}", settings)

    def endpoints(self, job: Job, place: Place) -> str:
        return _libtpu.endpoints(job, place)

    def from_files(self, facts: HostFacts) -> Mapping[str, str]:
        return _libtpu.from_files(facts)

    def notes(self, job: Job) -> tuple[str, ...]:
        facts = job.places[0].facts
        platform = self.platform(facts)
        if platform == "tpu" and not facts.tpu.get("unknown"):
            total = job.memo["chips"].slice.hosts * self._prepare(job)
            return inherited_notes(facts, total, job.memo["slices"] == 1)
        if platform != "cpu":
            return ()
        threads = "JAX sizes its thread pool by the cores that it may run on; bind= limits them"
        if job.coordinator.startswith("127."):
            return (threads,)
        return (threads, "JAX's gloo collectives listen at the address of the host name")

    def _prepare(self, job: Job) -> int:
        if "processes" not in job.memo:
            first = _libtpu.FIRST_PORT
            if job.local > DOCUMENTED_PORT - first:
                first = DOCUMENTED_PORT + 1  # eight cores would need the coordinator's port
            _libtpu.prepare(job, read_chips(job.places[0].facts), job.local, first)
        count: int = job.memo["processes"]
        return count

    def _gpus(self, facts: HostFacts) -> tuple[str, ...]:
        count = gpu_count(facts, "nvidia")
        return visible_gpus(facts.env.get(CUDA_MASK), count) if count else ()


def _tpu_fit(facts: HostFacts, hosts: int) -> Fit:
    if facts.tpu.get("unknown"):
        return Fit(1, (1,), f"unknown TPU chips ({facts.tpu['unknown']}): one process per host")
    chips = read_chips(facts)
    name, units = chips.generation.name, len(chips.visible)
    what = "core" if chips.generation.processes_per_chip > 1 else "chip"
    reason = many(units, f"{name} {what}")
    if name in ("v2", "v3"):
        reason += ", each with two devices in one process"
    advice = "nprocs=1 runs one process for the whole host."
    if hosts > 1:
        return Fit(units, tuple(sorted({1, units})), f"{reason} on each of {hosts} hosts", advice)
    return Fit(chips.counts[-1], chips.counts, reason, advice)


def _fresh(facts: HostFacts) -> dict[str, str]:
    """Return the environment that a fresh process on a TPU host has after ``import jax``."""
    values = {
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "GRPC_VERBOSITY": "ERROR",
        "TPU_ML_PLATFORM": "JAX",
        "TPU_ML_PLATFORM_VERSION": facts.frameworks.get("jax") or "",
        "ENABLE_RUNTIME_UPTIME_TELEMETRY": "1",
        "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "60",
        "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "256",
    }
    return after_import(facts, values, {"LIBTPU_INIT_ARGS": BARRIER})


def _need(job: Job) -> PortNeed:
    fixed = 0 if job.leasable else job.coordinator_port or DOCUMENTED_PORT
    return PortNeed("coordinator", "hold", job.coordinator, fixed, DOCUMENTED_PORT)
