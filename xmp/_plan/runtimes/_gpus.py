"""torch's GPU runtimes: one replica per visible GPU, and each replica sees all GPUs of the launch.

Existing programs that call ``set_device(LOCAL_RANK)`` or pass ``device_ids=[rank]`` rely on the
numbering that this gives. Masks are read as in torch 2.13 (``torch/cuda/__init__.py``).
"""

from __future__ import annotations

from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, Request

from ._base import Fit, Job, Place, Runtime, Share, many

__all__ = [
    "AMD_MASKS",
    "CUDA_MASK",
    "Gpus",
    "amd_gpus",
    "gpu_count",
    "gpu_fit",
    "place_in",
    "visible_gpus",
]

CUDA_MASK = "CUDA_VISIBLE_DEVICES"  # "3,5", "GPU-8932f937,GPU-3f2a", "MIG-GPU-8932f937/1/2"
AMD_MASKS = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"  # "3,5", "GPU-6a2b"; "0,2"


class Gpus(Runtime):
    """A vendor's GPUs: local rank i uses the i-th of the mask."""

    framework = "xmp._inside.frameworks.torch_dist"
    family = "torch"
    package = "torch"
    store = True
    needs_packages = ("torch",)
    vendor = ""
    """The vendor, as ``HostFacts.gpus`` names it."""
    mask = ""
    """The variable that names the devices which a process may use."""
    device_type = ""
    """torch's name for the type of device."""

    def visible(self, facts: HostFacts) -> tuple[str, ...]:
        count = gpu_count(facts, self.vendor)
        return self._visible(facts, count) if count else ()

    def _visible(self, facts: HostFacts, count: int) -> tuple[str, ...]:
        """Return the entries of the mask on a host with ``count`` GPUs of the vendor."""
        return visible_gpus(facts.env.get(self.mask), count, self.mask)

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        return gpu_fit(self.visible(facts), facts, self.mask, self.name)

    def share(self, job: Job, place: Place, local: int) -> Share:
        mask, index = place_in(self.chosen(job, place), local)
        return Share(
            set={self.mask: mask},
            device=f"{self.device_type}:{index}",
            settings={"device_type": self.device_type, "device_index": str(index)},
        )


def gpu_count(facts: HostFacts, vendor: str) -> int:
    """Return how many GPUs of this vendor the host has."""
    return facts.gpus.get("count", 0) if facts.gpus.get("vendor") == vendor else 0


def visible_gpus(mask: str | None, count: int, name: str = CUDA_MASK) -> tuple[str, ...]:
    """Return the entries of an inherited mask that the driver accepts, in order.

    ``count`` is the number of GPUs of the host (0 where unknown). Raise PlanError for a repeated
    entry, for which the driver hides every device.
    """
    if mask is None:
        return tuple(str(index) for index in range(count))
    entries: list[str] = []
    for text in (part.strip() for part in mask.split(",")):
        # The driver reads the list up to the first entry that names no device.
        if not text or text.startswith("-") or (is_number(text) and count and int(text) >= count):
            break
        if text in entries:
            raise PlanError(
                f"{name}={mask} repeats {text}, which hides every GPU. Name it once.",
                code="XMP-P07",
            )
        entries.append(text)
    return tuple(entries)


def place_in(chosen: tuple[str, ...], local: int) -> tuple[str, int]:
    """Return a replica's mask, and the index of its device there.

    All replicas have the same mask, but a MIG slice is alone in it: CUDA shows a process one slice,
    whatever its mask lists (NVIDIA's MIG User Guide, "CUDA Device Enumeration"; pytorch#102715).
    """
    own = chosen[local]
    return (own, 0) if own.startswith("MIG-") else (",".join(chosen), local)


def amd_gpus(facts: HostFacts) -> tuple[str, ...]:
    """Return the entries that AMD's two masks leave of this host's GPUs.

    The first mask filters and renumbers. The second counts what is left and overrides
    ``CUDA_VISIBLE_DEVICES``, which HIP also reads; torch 2.13 does the same
    (``torch/cuda/__init__.py``).
    """
    first, mask = AMD_MASKS
    count = gpu_count(facts, "amd")
    left = len(visible_gpus(facts.env.get(first), count, first)) if count else 0
    return visible_gpus(facts.env.get(mask, facts.env.get(CUDA_MASK)), left, mask) if left else ()


def gpu_fit(visible: tuple[str, ...], facts: HostFacts, mask: str, runtime: str) -> Fit:
    """Allow one replica for each visible GPU, or fewer; raise PlanError where there is none."""
    inherited = facts.env.get(mask)
    seen = many(len(visible), "visible GPU") + (f" ({mask}={inherited})" if inherited else "")
    if not visible:
        raise PlanError(
            f"this host has no GPU that runtime {runtime!r} may use"
            + (f" ({mask}={inherited!r})" if inherited is not None else "")
            + '. Use runtime="cpu", or check the driver with `python -m xmp facts`.',
            code="XMP-P06",
        )
    numbers = tuple(range(1, len(visible) + 1))
    return Fit(len(visible), numbers, seen, 'runtime="cpu" takes any number.')
