"""The actor on each host: it starts the host's agent and carries bytes.

Ray sends this class by value, because a host may lack xmp or have another version of it: until that
is known, the class needs the standard library alone, and so do the arguments of ``begin``.
"""

from __future__ import annotations

import importlib
import platform
import sys
import time
from typing import Any

__all__ = ["HostActor", "minor"]


class HostActor:
    """One on each host of a group. It never starts replicas: it has Ray's threads and ``__main__``.

    ``begin`` comes first. ``reports`` is called again and again while a launch runs; other methods
    run beside it, each of them in its own concurrency group.
    """

    def __init__(self) -> None:
        self._relay: Any = None

    def begin(
        self,
        versions: tuple[str, str],
        home: tuple[str, int],
        path: tuple[Any, ...],
        packets: list[Any],
    ) -> dict[str, Any]:
        """Start the agent, if this host has the driver's ``versions``; what there is here.

        All in one call, as each takes a turn of the driver. ``versions``: of Python ("3.11") and
        xmp. ``home``: where the driver's host can be reached, tried when the driver is silent.
        ``path``: the fields of its ``ProgramPath``. ``packets``: the first for the agent.
        """
        found = _versions()
        if (minor(found["python"]), found["xmp"]) == versions:
            found.update(self._start(home, path, packets))
        return found

    def _start(
        self, home: tuple[str, int], path: tuple[Any, ...], packets: list[Any]
    ) -> dict[str, Any]:
        ray: Any = importlib.import_module("ray")
        relay = importlib.import_module("xmp.plugins.ray.relay")
        self._relay = relay.Relay()
        self._relay.watch(home)
        self._relay.take(packets)
        return {
            "pid": int(self._relay.pid),
            "address": str(ray.util.get_node_ip_address()),
            "path": self.path(path),
        }

    def take(self, packets: list[Any]) -> None:
        """Pass packets on to the agent: for each its bytes, and the numbers of files."""
        self._relay.take(packets)

    def bring(self, number: int, size: int, offset: int, data: Any) -> None:
        """A piece of a file for the agent."""
        self._relay.incoming.bring(number, size, offset, data)

    def forget(self, number: int) -> None:
        """A launch is over: files up to this one, which the agent has not taken, are not needed."""
        self._relay.incoming.forget(number)

    def reports(self, number: int, seconds: float, output: bool = True) -> list[Any]:
        """What has come from the agent within so many seconds.

        ``number``: of this request. ``output``: whether the driver has room for output.
        """
        found: list[Any] = self._relay.reports(number, seconds, output)
        return found

    def rested(self, number: int) -> None:
        """The launch is over: the driver asks for nothing after the request of this number."""
        self._relay.rested(number)

    def piece(self, number: int, offset: int, size: int) -> Any:
        """A part of a file that ``reports`` has named."""
        return self._relay.piece(number, offset, size)

    def look_at_files(self, question: str, *details: Any) -> Any:
        """What the files of this host are like, or hold: the functions of ``host_files``."""
        files = importlib.import_module("xmp.plugins.ray.host_files")
        return getattr(files, question)(*details)

    def is_stopped(self) -> bool:
        """Whether a signal has stopped the agent."""
        return bool(self._relay.is_stopped())

    def clock(self) -> int:
        """This host's monotonic clock, in nanoseconds."""
        return time.monotonic_ns()

    def path(self, driver: Any) -> list[str]:
        """``sys.path`` of replicas here; ``driver``: the fields of its ``ProgramPath``."""
        surroundings = importlib.import_module("xmp.plugins.ray.surroundings")
        found: list[str] = surroundings.path(surroundings.ProgramPath(*driver))
        return found


def _versions() -> dict[str, Any]:
    """What this host has: its Python, its xmp (None: none, or its error), and its name."""
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
    """Of a version of Python: "3.11" of "3.11.7"."""
    return ".".join(version.split(".")[:2])
