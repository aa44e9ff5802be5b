"""Waiting for a service of rank 0 to listen, for clients that are slow to try again."""

from __future__ import annotations

import socket
import time

__all__ = ["wait_for_listener"]


def wait_for_listener(address: str, seconds: float = 300.0) -> None:
    """Connect once ``host:port`` listens; after that many seconds the client's own patience counts.

    A refused client of gRPC tries again after 1 s, one of Paddle after 3 s.
    """
    host, _, port = address.rpartition(":")
    deadline, pause = time.monotonic() + seconds, 0.001
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=pause + 1).close()
            return
        except OSError:
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
