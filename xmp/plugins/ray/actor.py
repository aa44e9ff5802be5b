"""The actor on each host: it starts what starts the host's agent, and ends with it.

Ray sends this class by value, because a host may lack xmp or have another version of it: until that
is known, the class needs the standard library alone, and so do the arguments of ``begin``.
"""

from __future__ import annotations

import importlib
import platform
import sys
from typing import Any

__all__ = ["HostActor", "minor"]


class HostActor:
    """One on each host of a group. It never starts replicas: it has Ray's threads and ``__main__``.

    ``begin`` comes first.
    """

    def __init__(self) -> None:
        self._process: Any = None

    def begin(self, versions: tuple[str, str], order: str, path: tuple[Any, ...]) -> dict[str, Any]:
        """Start the agent, if this host has the driver's ``versions``; return what there is here.

        All in one call, as each takes a turn of the driver. ``versions``: of Python ("3.11") and
        xmp. ``order``: for ``xmp-host``. ``path``: the fields of the driver's ``ProgramPath``.
        """
        found = _versions()
        if (minor(found["python"]), found["xmp"]) == versions:
            found.update(self._start(order, path))
        return found

    def _start(self, order: str, path: tuple[Any, ...]) -> dict[str, Any]:
        ray: Any = importlib.import_module("ray")
        host_process = importlib.import_module("xmp.plugins.ray.host_process")
        address = str(ray.util.get_node_ip_address())
        self._process = host_process.HostProcess(order, address)
        return {**self._process.answer, "address": address, "path": self.path(path)}

    def lives(self) -> None:
        """Answer."""

    def path(self, driver: Any) -> list[str]:
        """Return ``sys.path`` of replicas here; ``driver``: the fields of its ``ProgramPath``."""
        surroundings = importlib.import_module("xmp.plugins.ray.surroundings")
        found: list[str] = surroundings.path(surroundings.ProgramPath(*driver))
        return found


def _versions() -> dict[str, Any]:
    """Return what this host has: its Python, its xmp (None: none, or its error), and its name."""
    try:
        version: str | None = str(importlib.import_module("xmp").__version__)
        error = ""
    except BaseException as raised:  # a package that is broken raises anything
        version, error = None, f"{type(raised).__name__}: {raised}"
    return {
        "python": platform.python_version(),
        "xmp": version,
        "error": error,
        "name": platform.node(),
        "executable": sys.executable,
    }


def minor(version: str) -> str:
    """Return the minor version of a Python: "3.11" of "3.11.7"."""
    return ".".join(version.split(".")[:2])
