"""The table of runtimes, in the order of precedence when none is named or configured.

A new runtime is one file and one word here. Runtimes of plug-ins have the registry's names here;
those of other distributions are not listed, and are found only where the user names them.

Tests: ``tests/plans``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from xmp import _registry
from xmp._words.errors import PlanError, brief

from ._base import Fit, Job, Place, Runtime, Share, matches
from .cpu import Cpu
from .cuda import Cuda
from .fake import Fake
from .jax import JaxRuntime
from .pjrt import Pjrt
from .torch_tpu import TorchTpuRuntime

__all__ = [
    "Fit", "Job", "Place", "Runtime", "Share", "get", "matches", "names", "register", "runtimes",
    "unregister",
]  # fmt: skip

_GROUP = "runtimes"
_ORDER = (
    "xrt",  # only ever possible with a torch_xla that has no PJRT
    *(TorchTpuRuntime, "neuron", Pjrt, Cuda, "rocm", "xpu", JaxRuntime, "paddle", Fake),
    Cpu,  # last: it is possible everywhere
)


@functools.cache
def _table() -> list[Runtime]:
    found = (_registry.find(_GROUP, e) if isinstance(e, str) else e for e in _ORDER)
    return [make() for make in found if make is not None]


def runtimes() -> tuple[Runtime, ...]:
    """Return all runtimes in the order of precedence."""
    return tuple(_table())


def names() -> tuple[str, ...]:
    """Return the names of all runtimes in the order of precedence."""
    return tuple(runtime.name for runtime in _table())


def get(name: str, source: str = "runtime") -> Runtime:
    """Return the runtime called ``name``.

    Raises:
        PlanError: no runtime has this name; the message names ``source`` and the known ones.
        ImportError: the distribution that has it cannot be imported.
    """
    for runtime in _table():
        if runtime.name == name:
            return runtime
    others = _registry.foreign(_GROUP)
    if name in others:
        made: Runtime = others[name].load()()
        _table().append(made)
        return made
    known = [r.name for r in _table() if not r.for_tests]
    guess = _meant(name, (*names(), *others), [*known, *others])
    instead = f" You probably meant {guess}." if guess else ""
    shown = {r.name for r in _table() if not r.for_tests or guess == f'"{r.name}"'} | {*others}
    raise PlanError(
        f"{source}={brief(name)} is not known.{instead} Allowed: {', '.join(sorted(shown))}, "
        "or leave it out.",
        code="XMP-P06",
    )


def register(runtime: Runtime) -> None:
    """Add ``runtime`` before all others; raise PlanError for a name that is taken."""
    if runtime.name in names():
        raise PlanError(f"runtime {runtime.name!r} is already registered. Use another name.")
    _table().insert(0, runtime)


def unregister(name: str) -> None:
    """Remove the runtime called ``name`` from the table."""
    _table().remove(get(name))


# --- what an unknown name was meant to be --------------------------------------------------------


_GPU = '"cuda" (NVIDIA), "rocm" (AMD) or "xpu" (Intel) with torch, "jax" with JAX'
_TPU = '"pjrt" with torch_xla, "jax" with JAX, "torch_tpu" with torch_tpu'
_TORCH = '"cuda" on NVIDIA GPUs, "cpu" on CPUs; without runtime= xmp chooses'
_OTHER_NAMES = {
    **dict.fromkeys(("gpu", "gpus"), _GPU),
    **dict.fromkeys(("tpu", "tpus", "libtpu"), _TPU),
    **dict.fromkeys(("torch", "pytorch", "torch.distributed", "ddp"), _TORCH),
    **dict.fromkeys(("xla", "torch_xla"), '"pjrt" (torch_xla 2.1 or later)'),
    **dict.fromkeys(("nvidia", "cu"), '"cuda" with torch, "jax" with JAX'),
    **dict.fromkeys(("amd", "hip"), '"rocm" with torch, "jax" with JAX'),
    "intel": '"xpu" with torch',
    **dict.fromkeys(("nccl", "gloo", "mpi", "ucc"), 'backend="{name}", which is another argument'),
    **dict.fromkeys(("mps", "metal"), '"cpu": xmp has no runtime for Apple\'s GPUs'),
    **dict.fromkeys(("host", "native", "none", "multiprocessing"), '"cpu"'),
    **dict.fromkeys(("paddlepaddle", "fleet"), '"paddle"'),
    **dict.fromkeys(("flax", "jaxlib"), '"jax"'),
    **dict.fromkeys(("trn", "trainium", "inferentia"), '"neuron"'),
}


def _meant(name: str, names: Sequence[str], likely: Sequence[str]) -> str:
    """Return what to write instead of ``name``; "" where there is no guess.

    For a misspelt word only the ``likely`` names are considered.
    """
    plain = name.strip().lower().replace("-", "_").partition(":")[0]
    if plain in names:
        return f'"{plain}"'
    if plain in _OTHER_NAMES:
        return _OTHER_NAMES[plain].format(name=plain)
    from difflib import get_close_matches

    return "".join(f'"{near}"' for near in get_close_matches(plain, likely, 1))
