"""NVIDIA GPUs under torch: every replica sees all of them, and local rank i uses the i-th.

``set_device(LOCAL_RANK)`` and ``device_ids=[rank]`` of existing programs need that numbering.
"""

from __future__ import annotations

from xmp._errors import PlanError
from xmp._types import HostFacts, Request

from ._base import Fit, Job, Place, Runtime, Share, many

__all__ = ["Cuda", "gpu_fit", "visible_gpus"]

MASK = "CUDA_VISIBLE_DEVICES"  # "3,5", "GPU-8932f937,GPU-3f2a", "MIG-GPU-8932f937/1/2"


def visible_gpus(mask: str | None, count: int, name: str = MASK) -> tuple[str, ...]:
    """The entries of an inherited mask that the driver would accept, in order.

    ``count`` is the number of GPUs of the host (0 where unknown). Raises PlanError for a repeated
    entry, which makes the driver hide every device.
    """
    if mask is None:
        return tuple(str(index) for index in range(count))
    entries: list[str] = []
    for text in (part.strip() for part in mask.split(",")):
        # The driver reads the list up to the first entry that names no device.
        if not text or text.startswith("-") or (text.isdigit() and count and int(text) >= count):
            break
        if text in entries:
            raise PlanError(f"{name}={mask} repeats {text}, which hides every GPU. Name it once.")
        entries.append(text)
    return tuple(entries)


def gpu_fit(visible: tuple[str, ...], facts: HostFacts, mask: str, runtime: str) -> Fit:
    """One replica for each visible GPU, or fewer; raises PlanError where there is none."""
    inherited = facts.env.get(mask)
    seen = many(len(visible), "visible GPU") + (f" ({mask}={inherited})" if inherited else "")
    if not visible:
        raise PlanError(
            f"runtime {runtime!r} was chosen, but this host has no GPU that it may use"
            + (f" ({mask}={inherited!r})" if inherited is not None else "")
            + '. Use runtime="cpu", or check the driver with `python -m xmp facts`.'
        )
    numbers = tuple(range(1, len(visible) + 1))
    return Fit(len(visible), numbers, seen, 'runtime="cpu" takes any number.')


class Cuda(Runtime):
    """``cuda:0`` … in every replica, nccl by default."""

    name = "cuda"
    framework = "xmp._frameworks.torch_dist"
    family = "torch"
    package = "torch"
    store = True
    default_backend = "nccl"
    backends = ("nccl", "gloo", "mpi", "ucc")
    owned = (MASK,)
    needs_packages = ("torch",)

    def possible(self, facts: HostFacts) -> str:
        if facts.gpus.get("vendor") != "nvidia" or not self.visible(facts):
            return ""
        build = facts.frameworks.get("torch") or ""
        if not build or "+cpu" in build or "+rocm" in build or "+xpu" in build:
            return ""
        return f"{many(len(self.visible(facts)), 'NVIDIA GPU')} and torch {build}"

    def visible(self, facts: HostFacts) -> tuple[str, ...]:
        count = facts.gpus.get("count", 0) if facts.gpus.get("vendor") == "nvidia" else 0
        return visible_gpus(facts.env.get(MASK), count) if count else ()

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        return gpu_fit(self.visible(facts), facts, MASK, self.name)

    def share(self, job: Job, place: Place, local: int) -> Share:
        return Share(
            set={MASK: ",".join(self.chosen(job, place))},
            device=f"cuda:{local}",
            settings={"device_type": "cuda"},
        )
