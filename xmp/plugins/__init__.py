"""Plug-ins, the third ring, and the names from which other distributions make theirs.

The core finds ours by ``xmp._registry`` and imports none by name: each folder here can be deleted
from a checkout without harm to the rest. ``xmp.compat`` has the public names of four of them.

A runtime of another distribution is a subclass of ``Runtime`` with an entry point in the group
``xmp.runtimes``; ``xmp.spawn(fn, runtime="its name")`` finds it, and `xmp doctor` lists it. An
object with the methods of ``xmp._hosts.engines.protocol.Engine`` becomes an engine in the same
way, by ``xmp.engines``. An instance of ``Launcher`` adds a launcher's variables, by
``xmp.launchers``: it is asked where no launcher of ours has set its own, and a variable with RANK,
PROC, TASK, NODE, HOST or TRAINER in its name has a whole number.
Tests: ``tests/project/test_plugins.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmp._plan.clusters._launcher import Launcher
    from xmp._plan.runtimes._base import Fit, Job, Place, Runtime, Share
    from xmp._words.types import HostFacts, PortNeed, Request

__all__ = [
    "Fit",
    "HostFacts",
    "Job",
    "Launcher",
    "Place",
    "PortNeed",
    "Request",
    "Runtime",
    "Share",
]

_OF_TYPES = {"HostFacts", "PortNeed", "Request"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name for plug-ins when it is used: ours need not pay for it in each replica."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from xmp._plan.clusters import _launcher
        from xmp._plan.runtimes import _base
        from xmp._words import types

        module = types if name in _OF_TYPES else _launcher if name == "Launcher" else _base
        return getattr(module, name)
