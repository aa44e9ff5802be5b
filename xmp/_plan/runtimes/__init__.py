"""The table of runtimes, in the order of precedence when none is named or configured.

A new runtime is one file and one word here. Runtimes of plug-ins have the registry's names here;
those of other distributions are not listed, and are found only where the user names them.
"""

from __future__ import annotations

import functools

from xmp import _registry
from xmp._words.errors import PlanError

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

_GROUP = "runtimes"
_ORDER = (
    "xrt",  # only ever possible with a torch_xla that has no PJRT
    *(TorchTpu, "neuron", Pjrt, Cuda, "rocm", "xpu", Jax, "paddle", Fake),
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
    from ._meant import meant  # here: it brings difflib

    known = [r.name for r in _table() if not r.for_tests]
    guess = meant(name, (*names(), *others), [*known, *others])
    instead = f" You probably meant {guess}." if guess else ""
    allowed = (r.name for r in _table() if not r.for_tests or guess == f'"{r.name}"')
    raise PlanError(
        f"{source}={name!r} is not known.{instead} Allowed: {', '.join((*allowed, *others))}, "
        "or leave it out."
    )


def register(runtime: Runtime) -> None:
    """Add ``runtime`` before all others; raise PlanError for a name that is taken."""
    if runtime.name in names():
        raise PlanError(f"runtime {runtime.name!r} is already registered. Use another name.")
    _table().insert(0, runtime)


def unregister(name: str) -> None:
    """Remove the runtime called ``name`` from the table."""
    _table().remove(get(name))
