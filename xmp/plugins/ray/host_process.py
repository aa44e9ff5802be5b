"""What an actor does on its host: it starts ``xmp-host``, which starts the agent.

Both end with the actor, by a lifeline, and with the raylet. Ray's own look at that, every second,
takes a raylet that its parent has not waited for as alive (2.60, core_worker.cc,
ExitIfParentRayletDies): then its cluster gives the host up after 13 s.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from typing import Any

from xmp._processes.system import interpreter, linux

from .surroundings import for_agent

__all__ = ["HostProcess"]

_ROOM = 64 * 1024


class HostProcess:
    """The process at this host's end of the stream to the driver."""

    def __init__(self, order: str, address: str) -> None:
        """Start it with the driver's order; ``address``: where it may listen.

        The order has a secret, which an argument would show to all users of the host (proc(5)).
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watched, self._lifeline = os.pipe()
        raylet = _raylet()
        numbers = theirs.fileno(), watched, *raylet
        command = interpreter.fresh_interpreter("xmp._hosts.stream.far", "main", *numbers)
        with ours:
            with theirs:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=numbers, env=for_agent(),
                    start_new_session=True,
                )  # fmt: skip
            for descriptor in (watched, *raylet):
                os.close(descriptor)
            ours.send(json.dumps({**json.loads(order), "own": address}).encode())
            data = ours.recv(_ROOM)
        if not data:
            raise RuntimeError("xmp-host has ended before it had an agent")
        self.answer: dict[str, Any] = json.loads(data)
        """Whether it has ``met`` the driver; or why it was ``refused`` and the ``port`` at which it
        listens, 0 for none, and ``why``."""


def _raylet() -> list[int]:
    """Return a descriptor, where there can be one, readable when this host's raylet has ended."""
    pid = os.environ.get("RAY_RAYLET_PID", "")
    descriptor = linux.open_pidfd(int(pid)) if pid.isdigit() else None
    return [] if descriptor is None else [descriptor]
