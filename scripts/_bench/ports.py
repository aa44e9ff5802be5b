"""A free port, for the systems that leave that to the user."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
