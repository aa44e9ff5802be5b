"""``gpus`` and ``xpus``: absolute ids as positions in the host's mask; the number of replicas.
``backend``: Paddle's words for what connects them, as the chosen runtime has them.

An id is what the mask (``CUDA_VISIBLE_DEVICES``) holds, as in Paddle; ``xmp.spawn(devices=)``
counts within the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from xmp._calls.checks import whole_number
from xmp._plan.runtimes import Runtime
from xmp._plan.runtimes._cores import usable_cores
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._options import Ids, Options

__all__ = ["DISTRI_BACKEND", "Replicas", "count_of", "mapped", "replicas"]

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
        raise PlanError(
            f"nprocs={count}: give a number from 1 up, or -1 for every device", code="XMP-P01"
        )
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
            f"{len(ids)}.",
            code="XMP-P03",
        )
    return Replicas(len(ids), devices)


def _positions(name: str, ids: Ids, runtime: Runtime, facts: HostFacts) -> Ids:
    allowed = _ids_of(runtime, facts)
    word = "XPU" if name == "xpus" else "GPU" if name == "gpus" else "device"
    if not allowed or runtime.on_tpu(facts) or not _has(name, runtime):
        raise PlanError(
            f"{name}={_list(ids)}: runtime {runtime.name!r} has no {word} on this host"
            f"{_instead(name, runtime, allowed)}. Omit {name} and give nprocs, or name another "
            "runtime=.",
            code="XMP-P03",
        )
    given = [str(each) for each in ids]
    if not {*given} <= {*allowed}:
        mask = getattr(runtime, "mask", "") or _CUDA
        shown = f"{mask}={facts.env[mask]}" if facts.env.get(mask) else f"{mask} is not set"
        raise PlanError(
            f"{name}={_list(ids)} are not all among the {word}s that this process may use. Given: "
            f"{', '.join(given)}. Allowed: {', '.join(allowed)} ({shown}). Ids are those of the "
            "mask, not positions in it.",
            code="XMP-P03",
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


DISTRI_BACKEND = "PADDLE_DISTRI_BACKEND"
BACKENDS = ("auto", "gloo", "nccl", "xccl", "bkcl", "heter", "flagcx")
"""The backends of Paddle 3.3.1 (``check_backend`` of distributed/fleet/launch_utils.py)."""
_OF_TORCH = ("gloo", "nccl", "xccl")
_WHAT = {
    "xccl": "connects custom devices of Paddle's plugins",
    "bkcl": "connects Kunlun XPUs",
    "heter": "connects hosts with different devices",
    "flagcx": "is a library that Paddle can be built with",
}


def mapped(
    backend: str | None, runtime: Runtime, facts: HostFacts
) -> tuple[str | None, dict[str, str]]:
    """Return the backend of torch's process group, and the variables of the replicas.

    Under Paddle the word becomes PADDLE_DISTRI_BACKEND, where ``init_parallel_env`` looks for it;
    ``gloo`` then means training on the CPU, as in Paddle's spawn. Raise PlanError for a backend
    that is not known, or that the runtime does not have here.
    """
    if backend is None or backend == "auto":
        return None, {}
    if backend not in BACKENDS:
        near = get_close_matches(backend.lower(), BACKENDS, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise PlanError(
            f"backend={backend!r} is not known.{meant} Allowed: {', '.join(BACKENDS)}",
            code="XMP-P12",
        )
    has_gpu = bool(runtime.visible(facts))
    of_paddle = runtime.name == "paddle"
    allowed = ("gloo", "nccl")[: 1 + has_gpu] if of_paddle else runtime.backends
    if backend in allowed and (of_paddle or backend in _OF_TORCH):
        return (None, {DISTRI_BACKEND: backend}) if of_paddle else (backend, {})
    fitting = ["auto", *(each for each in _OF_TORCH if each in allowed)]
    raise PlanError(
        f"backend={backend!r}{_why(backend, runtime)}. Allowed on this host with runtime "
        f"{runtime.name!r}: {', '.join(fitting)}",
        code="XMP-P12",
    )


def _why(backend: str, runtime: Runtime) -> str:
    if runtime.name != "paddle" and backend in _OF_TORCH:
        return f" does not work with runtime {runtime.name!r}"
    if backend not in _WHAT:
        return ": Paddle sees no NVIDIA GPU here"
    without = "xmp runs Paddle on CPUs and NVIDIA GPUs"
    reason = without if runtime.name == "paddle" else "torch has nothing equal"
    return f" {_WHAT[backend]}, and {reason}"
