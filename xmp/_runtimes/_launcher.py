"""What it means for a launch that the launcher itself has brought a device up.

Its replicas are forked from a template that has not, or are fresh interpreters: only chips that
libtpu holds until the launcher ends are out of their reach.
"""

from __future__ import annotations

from xmp._errors import PlanError
from xmp._types import HostFacts

from ._base import Runtime

__all__ = ["check", "touched"]

NAMES = {"jax": "JAX"}
DEVICES = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "the XPU", "tpu": "the TPU", "cpu": "its CPUs"}


def check(runtime: Runtime, facts: HostFacts) -> tuple[str, ...]:
    """What to tell a launcher that has brought accelerators up itself, and now starts replicas.

    Raises PlanError where these could not have their chips because of it.
    """
    holders = [entry for entry in facts.initialised if entry.endswith(":tpu")]
    if holders and runtime.on_tpu(facts):
        raise PlanError(
            f"{_who(holders[0])} in this process, which holds the chips until it ends: replicas "
            f"could not have them with runtime={runtime.name!r}. Restart it (a notebook's kernel) "
            "and use the device in the function only, with JAX_PLATFORMS=cpu for JAX on the cores; "
            'or say nprocs=1 or runtime="cpu".'
        )
    return tuple(_untouched(entry) for entry in facts.initialised if _device(entry) != "cpu")


def touched(facts: HostFacts) -> tuple[str, ...]:
    """One sentence for each runtime that is up in the launcher."""
    return tuple(_untouched(entry) for entry in facts.initialised)


def _untouched(entry: str) -> str:
    what = f"{_who(entry)} in this process, which replicas do not inherit"
    return f'{what} (start_method="fork" is refused)'


def _device(entry: str) -> str:
    return entry.rpartition(":")[2]


def _who(entry: str) -> str:
    """``"JAX has initialised the TPU"``."""
    framework, _, device = entry.partition(":")
    return f"{NAMES.get(framework, framework)} has initialised {DEVICES.get(device, device)}"
