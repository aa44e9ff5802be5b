"""One connection of the loop: bytes in, frames out, and the handshake before them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

from .sealed import ANSWER_SIZE, Frames, Greeting, Keys
from .words import Malformed

__all__ = ["Peer", "Stranger"]

_CHUNK = 1 << 16
_BACKLOG = 4 << 20
"""Bytes that may wait for a peer that does not read; more, and it has to go."""


class Peer:
    """A host that has proved itself, or the launcher of this one.

    ``read`` and ``send`` raise OSError once the connection has ended.
    """

    def __init__(self, connection: socket.socket, frames: Frames, remote: bool) -> None:
        connection.setblocking(False)
        if remote:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.remote = remote
        self.index = -1
        """Of the host, once it has come to the roll call."""
        self.heard = time.monotonic()
        """When it sent something for the last time."""
        self.left = False
        """Whether it has said that it leaves."""
        self.unsent = b""
        self.on_backlog: Callable[[bool], None] = lambda waits: None
        """Called when something begins or ceases to wait for the peer."""
        self._frames = frames

    def read(self) -> Iterator[tuple[int, bytes]]:
        """The frames that have arrived; raises Malformed."""
        self.flush()
        try:
            data = self.socket.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return iter(())
        if not data:
            raise ConnectionResetError
        self.heard = time.monotonic()
        return self._frames.take(data)

    def send(self, kind: int, body: bytes = b"") -> None:
        """Send a frame, now or when the peer takes it."""
        waited = bool(self.unsent)
        self.unsent += self._frames.frame(kind, body)
        if len(self.unsent) > _BACKLOG:
            raise ConnectionAbortedError
        if not waited:
            self.flush()
            if self.unsent:
                self.on_backlog(True)

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it."""
        if not self.unsent:
            return
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        if not self.unsent:
            self.on_backlog(False)

    def close(self) -> None:
        self.socket.close()


class Stranger:
    """A connection whose handshake is not over."""

    def __init__(self, connection: socket.socket, keys: Keys) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._greeting = Greeting(keys)
        self._answer = b""
        connection.send(self._greeting.data)

    def read(self) -> Frames | None:
        """The frames of a host that has proved itself; None while its answer is incomplete.

        Raises Malformed for a stranger, and OSError when the connection has ended.
        """
        try:
            data = self.socket.recv(ANSWER_SIZE - len(self._answer))
        except (BlockingIOError, InterruptedError):
            return None
        if not data:
            raise ConnectionResetError
        self._answer += data
        if len(self._answer) < ANSWER_SIZE:
            return None
        reply, frames = self._greeting.reply(self._answer)
        self.socket.send(reply)
        if frames is None:
            raise Malformed("a stranger")
        return frames
