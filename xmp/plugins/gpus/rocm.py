"""AMD GPUs under torch: like ``cuda``, with HIP's own mask."""

from __future__ import annotations

from xmp._plan.runtimes._base import many
from xmp._plan.runtimes._gpus import AMD_MASKS, CUDA_MASK, Gpus, amd_gpus
from xmp._words.types import HostFacts

__all__ = ["Rocm"]


class Rocm(Gpus):
    """``cuda:0`` … in every replica: torch keeps that name, and calls RCCL nccl."""

    name = "rocm"
    vendor = "amd"
    mask = AMD_MASKS[1]
    device_type = "cuda"
    default_backend = "nccl"
    backends = ("nccl", "gloo", "mpi")
    owned = (mask, CUDA_MASK)
    inputs = AMD_MASKS[:1]

    def possible(self, facts: HostFacts) -> str:
        build = facts.frameworks.get("torch") or ""
        if "+rocm" not in build or not self.visible(facts):
            return ""
        return f"{many(len(self.visible(facts)), 'AMD GPU')} and torch {build}"

    def visible(self, facts: HostFacts) -> tuple[str, ...]:
        return amd_gpus(facts)
