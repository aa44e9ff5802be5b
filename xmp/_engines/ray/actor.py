"""The actor on each host: it starts the host's agent and carries bytes.

Ray sends this class by value, because a host may lack xmp or have another version of it: what the
class does before ``start`` needs the standard library alone.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
from typing import Any

__all__ = ["HostActor"]


class HostActor:
    """One on each host of a group. It never starts replicas: it has Ray's threads and ``__main__``.

    ``versions`` comes first, then ``start``. ``reports`` is called again and again while a launch
    runs; other methods run beside it, each of them in its own concurrency group.
    """

    def __init__(self) -> None:
        self._relay: Any = None

    def versions(self) -> dict[str, Any]:
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
            "pid": os.getpid(),
        }

    def start(self) -> int:
        """Start the agent; returns its process id."""
        relay = importlib.import_module("xmp._engines.ray.relay")
        self._relay = relay.Relay()
        return int(self._relay.pid)

    def take(self, packets: list[Any]) -> None:
        """Pass packets on to the agent: for each its bytes, and the numbers of files."""
        self._relay.take(packets)

    def bring(self, number: int, size: int, offset: int, data: Any) -> None:
        """A piece of a file for the agent."""
        self._relay.incoming.bring(number, size, offset, data)

    def forget(self, number: int) -> None:
        """A launch is over: files up to this one, which the agent has not taken, are not needed."""
        self._relay.incoming.forget(number)

    def watch(self, host: str, port: int) -> None:
        """Where the driver's host can be reached: tried when the driver is silent."""
        self._relay.watch((host, port))

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

    def is_stopped(self) -> bool:
        """Whether a signal has stopped the agent."""
        return bool(self._relay.is_stopped())

    def clock(self) -> int:
        """This host's monotonic clock, in nanoseconds."""
        return time.monotonic_ns()

    def address(self) -> str:
        """This host's address, as Ray knows it."""
        ray: Any = importlib.import_module("ray")
        return str(ray.util.get_node_ip_address())

    def path(self, driver: Any) -> list[str]:
        """``sys.path`` of replicas here; ``driver``: its ``ProgramPath``."""
        surroundings = importlib.import_module("xmp._engines.ray.surroundings")
        found: list[str] = surroundings.path(driver)
        return found
