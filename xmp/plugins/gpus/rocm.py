"""AMD GPUs under torch: like ``cuda``, with HIP's own mask.

``ROCR_VISIBLE_DEVICES`` filters first and renumbers; ``HIP_VISIBLE_DEVICES`` counts what is left
and overrides ``CUDA_VISIBLE_DEVICES``, which HIP also reads. torch 2.13 does the same
(``torch/cuda/__init__.py``).
"""

from __future__ import annotations

from xmp._plan.runtimes._base import many
from xmp._plan.runtimes._gpus import CUDA_MASK, Gpus, visible_gpus
from xmp._words.types import HostFacts

__all__ = ["Rocm"]

MASK = "HIP_VISIBLE_DEVICES"  # "0,2"
FIRST_MASK = "ROCR_VISIBLE_DEVICES"  # "3,5", "GPU-6a2b"


class Rocm(Gpus):
    """``cuda:0`` … in every replica: torch keeps that name, and calls RCCL nccl."""

    name = "rocm"
    vendor = "amd"
    mask = MASK
    device_type = "cuda"
    default_backend = "nccl"
    backends = ("nccl", "gloo", "mpi")
    owned = (MASK, CUDA_MASK)
    inputs = (FIRST_MASK,)

    def possible(self, facts: HostFacts) -> str:
        build = facts.frameworks.get("torch") or ""
        if "+rocm" not in build or not self.visible(facts):
            return ""
        return f"{many(len(self.visible(facts)), 'AMD GPU')} and torch {build}"

    def _visible(self, facts: HostFacts, count: int) -> tuple[str, ...]:
        left = len(visible_gpus(facts.env.get(FIRST_MASK), count, FIRST_MASK))
        mask = facts.env.get(MASK, facts.env.get(CUDA_MASK))
        return visible_gpus(mask, left, MASK) if left else ()
