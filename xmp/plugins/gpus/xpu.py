"""Intel GPUs under torch: like ``cuda``, with Level Zero's mask."""

from __future__ import annotations

from xmp._plan.runtimes._base import many
from xmp._plan.runtimes._gpus import Gpus, visible_gpus
from xmp._words.errors import PlanError
from xmp._words.types import ForkRules, HostFacts

__all__ = ["Xpu"]

MASK = "ZE_AFFINITY_MASK"  # "0,2"; "0.1" names a tile, which torch counts as no device


class Xpu(Gpus):
    """``xpu:0`` … in every replica, xccl by default."""

    name = "xpu"
    vendor = "intel"
    mask = MASK
    device_type = "xpu"
    default_backend = "xccl"
    backends = ("xccl", "ccl", "gloo", "mpi")
    owned = (MASK,)
    fork_rules = ForkRules(device_files=("/dev/dri/renderD*",))

    def possible(self, facts: HostFacts) -> str:
        build = facts.frameworks.get("torch") or ""
        if "+xpu" not in build or not self.visible(facts):
            return ""
        return f"{many(len(self.visible(facts)), 'Intel GPU')} and torch {build}"

    def _visible(self, facts: HostFacts, count: int) -> tuple[str, ...]:
        mask = facts.env.get(MASK)
        if mask and "." in mask:
            raise PlanError(
                f"{MASK}={mask!r} names tiles, which torch counts as no device. Name whole cards, "
                'as in "0,1".',
                code="XMP-P07",
            )
        return visible_gpus(mask or None, count, MASK)
