"""Intel GPUs under torch: as ``cuda``, through Level Zero's mask."""

from __future__ import annotations

from xmp._errors import PlanError
from xmp._types import ForkRules, HostFacts, Request

from ._base import Fit, Job, Place, Runtime, Share, many
from .cuda import gpu_fit, visible_gpus

__all__ = ["Xpu"]

MASK = "ZE_AFFINITY_MASK"  # "0,2"; "0.1" names a tile, which torch counts as no device


class Xpu(Runtime):
    """``xpu:0`` … in every replica, xccl by default."""

    name = "xpu"
    framework = "xmp._frameworks.torch_dist"
    family = "torch"
    package = "torch"
    store = True
    default_backend = "xccl"
    backends = ("xccl", "ccl", "gloo", "mpi")
    owned = (MASK,)
    needs_packages = ("torch",)
    fork_rules = ForkRules(device_files=("/dev/dri/renderD*",))

    def possible(self, facts: HostFacts) -> str:
        build = facts.frameworks.get("torch") or ""
        if "+xpu" not in build or facts.gpus.get("vendor") != "intel":
            return ""
        return f"{many(len(self.visible(facts)), 'Intel GPU')} and torch {build}"

    def visible(self, facts: HostFacts) -> tuple[str, ...]:
        if facts.gpus.get("vendor") != "intel":
            return ()
        mask = facts.env.get(MASK)
        if mask and "." in mask:
            raise PlanError(
                f"{MASK}={mask!r} names tiles, which torch counts as no device. Name whole cards, "
                'as in "0,1".'
            )
        return visible_gpus(mask or None, facts.gpus.get("count", 0), MASK)

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        return gpu_fit(self.visible(facts), facts, MASK, self.name)

    def share(self, job: Job, place: Place, local: int) -> Share:
        return Share(
            set={MASK: ",".join(self.chosen(job, place))},
            device=f"xpu:{local}",
            settings={"device_type": "xpu"},
        )
