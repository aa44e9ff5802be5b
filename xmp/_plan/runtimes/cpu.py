"""CPU processes, with torch's gloo where the program wants a process group."""

from __future__ import annotations

from xmp._words.types import HostFacts, Request

from ._base import Fit, Job, Place, Runtime, Share
from ._cores import usable_cores

__all__ = ["Cpu"]

JAX = "JAX_PLATFORMS"
MOST = 8
"""The most replicas by default: a 128-core host should not get 128 copies of a model."""


class Cpu(Runtime):
    """Any number of replicas; by default one per usable core, at most eight."""

    name = "cpu"
    framework = "xmp._inside.frameworks.torch_dist"
    family = "torch"
    store = True
    default_backend = "gloo"
    backends = ("gloo", "mpi")

    def possible(self, facts: HostFacts) -> str:
        return "every host has cores"

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        cores = usable_cores(facts)
        return Fit(min(cores, MOST), None, f"{cores} usable cores")

    def share(self, job: Job, place: Place, local: int) -> Share:
        # JAX in such a replica would open the chips, which only one process can own.
        apart = bool(place.facts.tpu) and JAX not in place.facts.env
        if not apart:
            return Share(settings={"device_type": "cpu"})
        return Share({JAX: "cpu"}, settings={"device_type": "cpu", "jax_platforms": "cpu"})

    def notes(self, job: Job) -> tuple[str, ...]:
        """Return notes on accelerators that stay idle, unless the user named this runtime."""
        facts = job.places[0].facts
        if job.request.runtime or facts.env.get("XMP_RUNTIME"):
            return ()
        torch = facts.frameworks.get("torch")
        using = f"the installed torch {torch} cannot use them" if torch else "torch is missing"
        found = []
        if facts.gpus.get("count"):
            found.append(f"{facts.gpus['count']} {facts.gpus['vendor']} GPUs")
        if facts.tpu.get("chips"):
            found.append(f"{facts.tpu['chips']} TPU chips ({facts.tpu['generation']})")
        return tuple(f"{what} are not used: {using}" for what in found)
