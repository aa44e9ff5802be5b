"""What a program does that is no host of a job and talks to the processes between hosts."""

from __future__ import annotations

import socket

__all__ = ["exactly"]


def exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes of a connection."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the connection was closed"
        data += part
    return data
