"""Notes and errors for a launcher that has itself initialised a device.

Its replicas are forked from a template that has initialised none, or are fresh interpreters. Only
TPU chips are a problem: libtpu holds them until the launcher ends.
"""

from __future__ import annotations

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Runtime

__all__ = ["check", "touched"]

NAMES = {"jax": "JAX"}
DEVICES = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "the XPU", "tpu": "the TPU", "cpu": "its CPUs"}


def check(runtime: Runtime, facts: HostFacts) -> tuple[str, ...]:
    """Return the warnings for a launcher that has initialised accelerators and starts replicas.

    Raise PlanError where it holds the chips that the replicas need.
    """
    holders = [entry for entry in facts.initialised if entry.endswith(":tpu")]
    if holders and runtime.on_tpu(facts):
        raise PlanError(
            f"{_who(holders[0])} in this process, which holds the chips until it ends: replicas "
            f"with runtime={runtime.name!r} cannot use them.\nRestart this process (a notebook's "
            "kernel) and use the device in the function only (JAX_PLATFORMS=cpu runs JAX on the "
            'CPU), or pass nprocs=1 or runtime="cpu".'
        )
    return tuple(_untouched(entry) for entry in facts.initialised if _device(entry) != "cpu")


def touched(facts: HostFacts) -> tuple[str, ...]:
    """Return one note for each device runtime that the launcher has initialised."""
    return tuple(_untouched(entry) for entry in facts.initialised)


def _untouched(entry: str) -> str:
    what = f"{_who(entry)} in this process, which replicas do not inherit"
    return f'{what} (start_method="fork" is refused)'


def _device(entry: str) -> str:
    return entry.rpartition(":")[2]


def _who(entry: str) -> str:
    """Return the entry in words: ``"JAX has initialised the TPU"``."""
    framework, _, device = entry.partition(":")
    return f"{NAMES.get(framework, framework)} has initialised {DEVICES.get(device, device)}"
