"""The registry of what the outer rings add to the core: rows of names, loaded when asked for.

Ring 1 (one host) imports nothing of ``_hosts`` and ``plugins``, ring 2 nothing of ``plugins``:
what these offer has a row here. A plug-in whose folder has been deleted from a checkout is left
out; nothing else changes. Other distributions add to a group by an entry point of the same name
(``xmp.runtimes``, ``xmp.engines``, ``xmp.launchers``), which is looked up only where no row of ours
answers:

    [project.entry-points."xmp.runtimes"]
    acme = "acme_xmp:Acme"        # a subclass of xmp.plugins.Runtime

Any process may use it. Tests: ``tests/project/test_plugins.py``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["every", "find", "foreign", "loaded", "names", "require"]

ROWS = {
    "runtimes": {  # their order of precedence is that of _plan/runtimes
        "xrt": "xmp.plugins.xrt.runtime:Xrt",
        "neuron": "xmp.plugins.gpus.neuron:Neuron",
        "rocm": "xmp.plugins.gpus.rocm:Rocm",
        "xpu": "xmp.plugins.gpus.xpu:Xpu",
        "paddle": "xmp.plugins.paddle.runtime:Paddle",
    },
    "engines": {
        "ssh": "xmp._hosts.engines.ssh:engine",
        "slurm": "xmp._hosts.engines.slurm:engine",
        "ray": "xmp.plugins.ray.engine:engine",
        "local": "xmp._hosts.engines.local:engine",
    },
    "hosts": {
        "OtherHosts": "xmp._hosts.other_hosts:OtherHosts",
        "joined": "xmp._hosts.joining:joined",
        "reach": "xmp._hosts.carrier.peer:reach",
        "engines": "xmp._hosts.engines",
    },
    "worlds": {"accelerate": "xmp.plugins.accelerate.world:AccelerateWorld"},
    "scripts": {"hydra": "xmp.plugins.hydra.folders:keep_apart"},
    "doctor": {"ray": "xmp.plugins.ray.doctor:findings"},
    "shutdown": {
        "hosts": "xmp._hosts.other_hosts:shutdown",
        "engines": "xmp._hosts.engines:shutdown",
    },
}
"""For each group, by name: a module and its attribute to take; without ":", the module itself.

``worlds``: libraries whose state a replica prepares before it calls the function. ``scripts``:
functions called before a script of `xmp run`. ``doctor``: functions that add findings.
``shutdown``: functions that ``xmp.shutdown()`` calls.
"""


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group's rows, including those of plug-ins that are not there."""
    return tuple(ROWS[group])


def find(group: str, name: str) -> Any:
    """Load what a row names; None if its plug-in is not there, or if there is no such row."""
    row = ROWS[group].get(name)
    if row is None:
        return None
    module, _, attribute = row.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        return None
    return getattr(found, attribute) if attribute else found


def require(group: str, name: str) -> Any:
    """Load what a row names.

    Raises:
        ImportError: its plug-in is not there.
    """
    found = find(group, name)
    if found is None:
        raise ImportError(f"this installation of xmp lacks {ROWS[group][name].partition(':')[0]}")
    return found


def every(group: str) -> list[Any]:
    """Load what the group's rows name, without those whose plug-in is not there."""
    return [found for name in ROWS[group] if (found := find(group, name)) is not None]


def loaded(group: str) -> Iterator[Any]:
    """Yield what the group's rows name, of those whose module this process has already imported."""
    for row in ROWS[group].values():
        module, _, attribute = row.partition(":")
        if module in sys.modules:
            found = sys.modules[module]
            yield getattr(found, attribute) if attribute else found


def foreign(group: str) -> dict[str, EntryPoint]:
    """Return the entry points that other distributions add to a group, by name; load none."""
    from importlib.metadata import entry_points  # it reads every distribution's list

    return {each.name: each for each in entry_points(group=f"xmp.{group}")}
