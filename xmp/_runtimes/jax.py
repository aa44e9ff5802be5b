"""JAX: one process per device, joined by ``jax.distributed`` before the user's function runs."""

from __future__ import annotations

from xmp._errors import PlanError
from xmp._types import HostFacts, PortNeed, Request

from ._base import Fit, Job, Place, Runtime, Share
from ._cores import usable_cores
from .cpu import MOST
from .cuda import MASK, gpu_fit, visible_gpus

__all__ = ["Jax"]

PLATFORMS = "JAX_PLATFORMS"  # "cpu", "tpu,cpu", "cuda"
CPU_DEVICES = "JAX_NUM_CPU_DEVICES"  # "4"
COORDINATOR = "JAX_COORDINATOR_ADDRESS"  # "10.0.0.1:8482"
DOCUMENTED_PORT = 8482


class Jax(Runtime):
    """One GPU per replica where JAX's CUDA plugin is installed, else the cores."""

    name = "jax"
    framework = "xmp._frameworks.jax"
    family = "jax"
    package = "jax"
    owned = (COORDINATOR, "JAX_COORDINATOR_*", "JAX_LOCAL_DEVICE_IDS", "JAX_PARTITION_INDEX")
    needs_packages = ("jax",)

    def platform(self, facts: HostFacts) -> str:
        """``cuda`` or ``cpu``: the first that the user's setting, hardware and plugin allow."""
        wanted = facts.env.get(PLATFORMS, "").split(",")[0].strip()
        if wanted == "cpu":
            return "cpu"
        able = bool(facts.frameworks.get("jax_cuda_plugin")) and bool(self._gpus(facts))
        if wanted in ("cuda", "gpu") and not able:
            raise PlanError(
                f"{PLATFORMS}={facts.env[PLATFORMS]} was given, but this host has no NVIDIA GPU "
                f'with an installed JAX plugin. Set {PLATFORMS}=cpu, or install "jax[cuda12]".'
            )
        return "cuda" if able else "cpu"

    def possible(self, facts: HostFacts) -> str:
        version = facts.frameworks.get("jax")
        return f"jax {version} is installed" if version else ""

    def visible(self, facts: HostFacts) -> tuple[str, ...] | None:
        return self._gpus(facts) if self.platform(facts) == "cuda" else None

    def fit(self, facts: HostFacts, request: Request) -> Fit:
        if self.platform(facts) == "cuda":
            return gpu_fit(self._gpus(facts), facts, MASK, self.name)
        cores = usable_cores(facts)
        return Fit(min(cores, MOST), None, f"{cores} usable cores")

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        if job.places[0].index != 0:
            return ()
        return (self._need(job),)

    def share(self, job: Job, place: Place, local: int) -> Share:
        address = f"{_bracketed(job.coordinator)}:{job.port(self._need(job))}"
        given = {COORDINATOR: address}
        settings = {"coordinator": address}
        platform = self.platform(place.facts)
        settings["platforms"] = given[PLATFORMS] = place.facts.env.get(PLATFORMS) or platform
        if platform == "cuda":
            given[MASK] = ",".join(self.chosen(job, place))
            settings["local_device_ids"] = str(local)
            return Share(given, f"cuda:{local}", settings)
        # JAX_NUM_CPU_DEVICES beats a host device count that is left over in XLA_FLAGS.
        count = place.facts.env.get(CPU_DEVICES) or "1"
        settings["num_cpu_devices"] = given[CPU_DEVICES] = count
        given["TPU_SKIP_MDS_QUERY"] = "1"
        return Share(given, "cpu", settings)

    def notes(self, job: Job) -> tuple[str, ...]:
        if self.platform(job.places[0].facts) != "cpu":
            return ()
        return ("JAX sizes its own thread pool from the cores it may run on; bind= limits it",)

    def _gpus(self, facts: HostFacts) -> tuple[str, ...]:
        count = facts.gpus.get("count", 0) if facts.gpus.get("vendor") == "nvidia" else 0
        return visible_gpus(facts.env.get(MASK), count) if count else ()

    def _need(self, job: Job) -> PortNeed:
        fixed = 0 if job.leasable else job.coordinator_port or DOCUMENTED_PORT
        return PortNeed("coordinator", "hold", job.coordinator, fixed, DOCUMENTED_PORT)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
