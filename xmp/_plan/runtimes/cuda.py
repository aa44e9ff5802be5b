"""NVIDIA GPUs under torch."""

from __future__ import annotations

from xmp._words.types import HostFacts

from ._base import many
from ._gpus import CUDA_MASK, Gpus

__all__ = ["Cuda"]


class Cuda(Gpus):
    """``cuda:0`` … in every replica, nccl by default."""

    name = "cuda"
    vendor = "nvidia"
    mask = CUDA_MASK
    device_type = "cuda"
    default_backend = "nccl"
    backends = ("nccl", "gloo", "mpi", "ucc")
    owned = (CUDA_MASK,)

    def possible(self, facts: HostFacts) -> str:
        if not self.visible(facts):
            return ""
        build = facts.frameworks.get("torch") or ""
        if not build or "+cpu" in build or "+rocm" in build or "+xpu" in build:
            return ""
        return f"{many(len(self.visible(facts)), 'NVIDIA GPU')} and torch {build}"
