"""Where the core finds what the other rings add: rows of names, each loaded when it is asked for.

Ring 1 (one host) imports nothing of ``_hosts`` and ``plugins``, ring 2 nothing of ``plugins``:
what these offer has a row here. A plug-in whose folder has been deleted from a checkout is left
out; nothing else changes. Other distributions add to a group by an entry point of the same name
(``xmp.runtimes``, ``xmp.engines``), which is looked up only when a name is in no row:

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
        "ray": "xmp.plugins.ray.engine:engine",
        "local": "xmp._hosts.engines.local:engine",
    },
    "hosts": {
        "OtherHosts": "xmp._hosts.other_hosts:OtherHosts",
        "joined": "xmp._hosts.joining:joined",
        "reach": "xmp._hosts.carrier.reach:reach",
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
"""For each group, by name, the module and what is taken from it; without ":" the module itself.

``worlds``: libraries of which a replica readies the state, before the function. ``scripts``: what
is called before a script of `xmp run`. ``doctor``: further findings. ``shutdown``: what ends with
``xmp.shutdown()``.
"""


def names(group: str) -> tuple[str, ...]:
    """The names of a group's rows, of plug-ins that are not there, too."""
    return tuple(ROWS[group])


def find(group: str, name: str) -> Any:
    """What the row has; None where its plug-in is not there, or where there is no such row."""
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
    """What the row has.

    Raises:
        ImportError: its plug-in is not there.
    """
    found = find(group, name)
    if found is None:
        raise ImportError(f"this installation of xmp lacks {ROWS[group][name].partition(':')[0]}")
    return found


def every(group: str) -> list[Any]:
    """What all rows of the group have whose plug-in is there."""
    return [found for name in ROWS[group] if (found := find(group, name)) is not None]


def loaded(group: str) -> Iterator[Any]:
    """The same, of modules that this process has imported already."""
    for row in ROWS[group].values():
        module, _, attribute = row.partition(":")
        if module in sys.modules:
            yield getattr(sys.modules[module], attribute)


def foreign(group: str) -> dict[str, EntryPoint]:
    """What other distributions add to a group, by name; nothing of it is loaded yet."""
    from importlib.metadata import entry_points  # it reads every distribution's list

    return {each.name: each for each in entry_points(group=f"xmp.{group}")}
