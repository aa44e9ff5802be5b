"""AMD GPUs under torch: as ``cuda``, through HIP's own mask.

``ROCR_VISIBLE_DEVICES`` filters first and renumbers; ``HIP_VISIBLE_DEVICES`` counts in what is left
and beats ``CUDA_VISIBLE_DEVICES``, which HIP also reads.
"""

from __future__ import annotations

from xmp._types import HostFacts, Request

from ._base import Fit, Job, Place, Runtime, Share, many
from .cuda import MASK as CUDA_MASK
from .cuda import gpu_fit, visible_gpus

__all__ = ["Rocm"]

MASK = "HIP_VISIBLE_DEVICES"  # "0,2"
FIRST_MASK = "ROCR_VISIBLE_DEVICES"  # "3,5", "GPU-6a2b"


class Rocm(Runtime):
    """``cuda:0`` … in every replica: torch keeps that name, and calls RCCL nccl."""

    name = "rocm"
    framework = "xmp._frameworks.torch_dist"
    family = "torch"
    package = "torch"
    store = True
    default_backend = "nccl"
    backends = ("nccl", "gloo", "mpi")
    owned = (MASK, CUDA_MASK)
    inputs = (FIRST_MASK,)
    needs_packages = ("torch",)

    def possible(self, facts: HostFacts) -> str:
        build = facts.frameworks.get("torch") or ""
        if "+rocm" not in build or not self.visible(facts):
            return ""
        return f"{many(len(self.visible(facts)), 'AMD GPU')} and torch {build}"

    def visible(self, facts: HostFacts) -> tuple[str, ...]:
        if facts.gpus.get("vendor") != "amd":
            return ()
        left = len(visible_gpus(facts.env.get(FIRST_MASK), facts.gpus.get("count", 0), FIRST_MASK))
        mask = facts.env.get(MASK, facts.env.get(CUDA_MASK))
        return visible_gpus(mask, left, MASK) if left else ()

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        return gpu_fit(self.visible(facts), facts, MASK, self.name)

    def share(self, job: Job, place: Place, local: int) -> Share:
        return Share(
            set={MASK: ",".join(self.chosen(job, place))},
            device=f"cuda:{local}",
            settings={"device_type": "cuda"},
        )
