"""Plug-ins, the third ring, and the names from which other distributions make theirs.

The core finds ours by ``xmp._registry`` and imports none by name: each folder here can be deleted
from a checkout without harm to the rest. ``xmp.compat`` has the public names of four of them.

A runtime of another distribution is a subclass of ``Runtime`` with an entry point in the group
``xmp.runtimes``; ``xmp.spawn(fn, runtime="its name")`` finds it, and `xmp doctor` lists it. An
object with the methods of ``xmp._hosts.engines.protocol.Engine`` becomes an engine in the same
way, by ``xmp.engines``, and an instance of ``Launcher`` a launcher whose variables xmp knows, by
``xmp.launchers``. Tests: ``tests/project/test_plugins.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xmp._plan.clusters.launchers import Launcher
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
        from xmp._plan.clusters import launchers
        from xmp._plan.runtimes import _base
        from xmp._words import types

        module = types if name in _OF_TYPES else launchers if name == "Launcher" else _base
        return getattr(module, name)
