"""The table of runtimes, in the order of precedence when none is named or configured.

A new runtime is one file and one row here; ``register`` adds one from outside the package.
"""

from __future__ import annotations

from xmp._words.errors import PlanError
from xmp.plugins.gpus.neuron import Neuron
from xmp.plugins.gpus.rocm import Rocm
from xmp.plugins.gpus.xpu import Xpu
from xmp.plugins.paddle.runtime import Paddle
from xmp.plugins.xrt.runtime import Xrt

from ._base import Fit, Job, Place, Runtime, Share, matches
from .cpu import Cpu
from .cuda import Cuda
from .fake import Fake
from .jax import Jax
from .pjrt import Pjrt
from .torch_tpu import TorchTpu

__all__ = [
    "Fit",
    "Job",
    "Place",
    "Runtime",
    "Share",
    "get",
    "matches",
    "names",
    "register",
    "runtimes",
    "unregister",
]

_table: list[Runtime] = [
    Xrt(),  # only ever possible with a torch_xla that has no PJRT
    TorchTpu(),
    Neuron(),
    Pjrt(),
    Cuda(),
    Rocm(),
    Xpu(),
    Jax(),
    Paddle(),
    Fake(),
    Cpu(),  # last: it is possible everywhere
]


def runtimes() -> tuple[Runtime, ...]:
    """All runtimes in the order of precedence."""
    return tuple(_table)


def names() -> tuple[str, ...]:
    """Their names, in the same order."""
    return tuple(runtime.name for runtime in _table)


def get(name: str, source: str = "runtime") -> Runtime:
    """The runtime called ``name``; PlanError names ``source`` and the known ones."""
    for runtime in _table:
        if runtime.name == name:
            return runtime
    from ._meant import meant  # here: it brings difflib

    guess = meant(name, names(), [r.name for r in _table if not r.for_tests])
    instead = f" You probably meant {guess}." if guess else ""
    allowed = (r.name for r in _table if not r.for_tests or guess == f'"{r.name}"')
    raise PlanError(
        f"{source}={name!r} is not known.{instead} Allowed: {', '.join(allowed)}, or leave it out."
    )


def register(runtime: Runtime) -> None:
    """Add ``runtime`` before all others; raises PlanError for a name that is taken."""
    if runtime.name in names():
        raise PlanError(f"runtime {runtime.name!r} is already registered. Use another name.")
    _table.insert(0, runtime)


def unregister(name: str) -> None:
    """Remove the runtime called ``name`` from the table."""
    _table.remove(get(name))
