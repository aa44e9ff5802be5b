"""``gpus`` and ``xpus``: absolute ids as positions in the host's mask; the number of replicas.

An id is what the mask (``CUDA_VISIBLE_DEVICES``) holds, as in Paddle; ``xmp.spawn(devices=)``
counts within the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from xmp._calls.checks import whole_number
from xmp._plan.runtimes import Runtime
from xmp._plan.runtimes._cores import usable_cores
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._options import Ids, Options

__all__ = ["Replicas", "count_of", "replicas"]

_CUDA = "CUDA_VISIBLE_DEVICES"
_ON_CORES = ("cpu", "jax", "paddle")
"""Runtimes that take any number of replicas where these use the cores."""


@dataclass(frozen=True)
class Replicas:
    """The replicas that a call asks for."""

    nprocs: int | None
    """Their number; None for one on every device."""
    devices: Ids | None = None
    """Positions in what the host's mask allows; None for the first ones."""
    every_core: bool = False
    """Whether there is one for each core, since the call names no number."""


def count_of(nprocs: object) -> int | None:
    """Return ``nprocs=`` from 1 up, None for -1 (every device); raise PlanError or TypeError."""
    count = whole_number("nprocs", nprocs)
    if count is None or count == -1:
        return None
    if count < 1:
        raise PlanError(f"nprocs={count}: give a number from 1 up, or -1 for every device")
    return count


def replicas(count: int | None, options: Options, runtime: Runtime, facts: HostFacts) -> Replicas:
    """Return the replicas that ``nprocs``, ``gpus`` and ``xpus`` ask for, or raise PlanError.

    Without any of these: every device that the mask shows or, where the runtime uses the cores,
    every core that this process may use.
    """
    name = next((n for n in ("gpus", "xpus", "selected_devices") if getattr(options, n)), None)
    if name is None:
        on_cores = runtime.name in _ON_CORES and not _ids_of(runtime, facts)
        if count is None and on_cores and not runtime.on_tpu(facts):
            return Replicas(usable_cores(facts), every_core=True)
        return Replicas(count)
    ids: Ids = getattr(options, name)
    devices = _positions(name, ids, runtime, facts)
    if count not in (None, len(ids)):
        raise PlanError(
            f"nprocs={count}, but {name}={_list(ids)} names {len(ids)}. Omit nprocs, or give "
            f"{len(ids)}."
        )
    return Replicas(len(ids), devices)


def _positions(name: str, ids: Ids, runtime: Runtime, facts: HostFacts) -> Ids:
    allowed = _ids_of(runtime, facts)
    word = "XPU" if name == "xpus" else "GPU" if name == "gpus" else "device"
    if not allowed or runtime.on_tpu(facts) or not _has(name, runtime):
        raise PlanError(
            f"{name}={_list(ids)}: runtime {runtime.name!r} has no {word} on this host"
            f"{_instead(name, runtime, allowed)}. Omit {name} and give nprocs, or name another "
            "runtime=."
        )
    given = [str(each) for each in ids]
    if not {*given} <= {*allowed}:
        mask = getattr(runtime, "mask", "") or _CUDA
        shown = f"{mask}={facts.env[mask]}" if facts.env.get(mask) else f"{mask} is not set"
        raise PlanError(
            f"{name}={_list(ids)} are not all among the {word}s that this process may use. Given: "
            f"{', '.join(given)}. Allowed: {', '.join(allowed)} ({shown}). Ids are those of the "
            "mask, not positions in it."
        )
    return tuple(allowed.index(each) for each in given)


def _ids_of(runtime: Runtime, facts: HostFacts) -> tuple[str, ...]:
    return runtime.visible(facts) or ()


def _has(name: str, runtime: Runtime) -> bool:
    """Return whether this option counts the devices of this runtime."""
    if name == "selected_devices":
        return True
    return (runtime.name == "xpu") is (name == "xpus")


def _instead(name: str, runtime: Runtime, allowed: tuple[str, ...]) -> str:
    if not allowed:
        return ""
    return f" (it has {', '.join(allowed)}: {'gpus' if name == 'xpus' else 'xpus'}=)"


def _list(ids: Ids) -> str:
    return repr(",".join(map(str, ids)))
