"""One connection of the loop: bytes in, frames out, and the handshake before them."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from xmp._os.names import connected

from .sealed import ANSWER_SIZE, GREETING_SIZE, MAGIC, OTHER_SECRET, Frames, Greeting, Keys
from .words import Malformed

__all__ = [
    "OtherSecret", "Peer", "Stranger", "drain", "reach", "readable", "send_again_soon",
]  # fmt: skip

_CHUNK = 1 << 14
_BACKLOG = 4 << 20
"""Bytes that may wait for a peer that does not read; with more, its connection is closed."""
_PIECES = 64
"""Pieces given to the kernel at once (it takes 1,024)."""
_GOODBYE = 1.0
_THIN_LINEAR_TIMEOUTS, _RTO_MAX_MS = 16, 44  # include/uapi/linux/tcp.h
_A_FLOOD = 1000
"""Frames from a remote peer within a second; a host sends one, and one more for each event."""
SECONDS = 3.0


class Peer:
    """A host that has proved itself, or the launcher of this one.

    ``read`` and ``send`` raise OSError once the connection has ended.
    """

    def __init__(self, connection: socket.socket, frames: Frames, remote: bool) -> None:
        connection.setblocking(False)
        if remote:
            with contextlib.suppress(OSError):  # a sandbox: it is slower then
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send_again_soon(connection)
        self.socket = connection
        self.remote = remote
        self.index = -1
        """The index of the host, once it has come to the roll call; until then -1."""
        self.heard = time.monotonic()
        """When the peer last sent something (monotonic seconds)."""
        self.left = False
        """Whether the peer has said that it leaves."""
        self.unsent = 0
        """Bytes that wait until the peer takes them."""
        self.on_backlog: Callable[[bool], None] = lambda waits: None
        """Called with True when data begins to wait for the peer, with False when all is sent."""
        self.frames = frames
        self._queue: deque[memoryview] = deque()
        self._failed = False
        self._second, self._count = self.heard, 0
        """When a second of the flood check began, and how many frames had come by then."""

    def read(self) -> Iterable[tuple[int, bytes]]:
        """Return the frames that have arrived. Raises Malformed."""
        if self.unsent:
            self.flush()
        try:
            data = self.socket.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return ()
        if not data:
            raise ConnectionResetError
        self.heard = now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._count = now, self.frames.taken
        elif self.frames.taken - self._count > _A_FLOOD and self.remote:
            raise Malformed(f"more than {_A_FLOOD} messages in a second")
        return self.frames.take(data)

    def send(self, kind: int, body: bytes = b"") -> None:
        """Send a frame, now or when the peer takes it; do nothing after an earlier error.

        The body is not copied: a message to all hosts is in memory once.
        """
        if self._failed:
            return
        head = self.frames.head(kind, body)
        try:
            sent = 0 if self._queue else self._give([head, body] if body else [head])
            if sent < len(head) + len(body):
                self._keep([head, body], sent)
        except OSError:
            self._failed = True
            raise

    def _keep(self, pieces: list[bytes], sent: int) -> None:
        waited = bool(self._queue)
        for piece in pieces:
            if sent < len(piece):
                self._queue.append(memoryview(piece)[sent:])
                self.unsent += len(piece) - sent
            sent = max(0, sent - len(piece))
        if self.unsent > _BACKLOG:
            raise ConnectionAbortedError
        if not waited:
            self.on_backlog(True)

    def flush(self) -> None:
        """Send waiting data as far as the peer takes it."""
        while self._queue and not self._failed:
            pieces = [self._queue[i] for i in range(min(len(self._queue), _PIECES))]
            sent = self._give(pieces)
            if not sent:
                return
            self.unsent -= sent
            while self._queue and sent >= len(self._queue[0]):
                sent -= len(self._queue.popleft())
            if sent:
                self._queue[0] = self._queue[0][sent:]
            if not self._queue:
                self.on_backlog(False)

    def _give(self, pieces: list[bytes] | list[memoryview]) -> int:
        try:
            return self.socket.sendmsg(pieces)
        except (BlockingIOError, InterruptedError):
            return 0

    def close(self) -> None:
        self._queue.clear()
        self.unsent = 0
        self.socket.close()


def send_again_soon(connection: socket.socket) -> None:
    """Have the kernel retransmit lost data before the other host takes this one for lost.

    By default it waits twice as long after each attempt, up to two minutes: when a network is back
    after 7 s, the next attempt comes at the 13th second. TCP_THIN_LINEAR_TIMEOUTS keeps the
    interval for six attempts, so that one comes by the 8th second; TCP_RTO_MAX_MS, of Linux 6.15,
    repeats every second for ever.
    """
    for option, value in ((_THIN_LINEAR_TIMEOUTS, 1), (_RTO_MAX_MS, 1000)):
        with contextlib.suppress(OSError):  # another kernel
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class OtherSecret(Malformed):
    """A host names the same job, but does not know its secret."""


class Stranger:
    """A connection whose handshake is not over."""

    def __init__(self, connection: socket.socket, keys: Keys) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._greeting = Greeting(keys)
        self._answer = b""
        connection.send(self._greeting.data)

    def read(self) -> Frames | None:
        """Return the frames of a host that has proved itself; None while its answer is incomplete.

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
            raise OtherSecret if reply == OTHER_SECRET else Malformed("a stranger")
        return frames

    def close(self) -> None:
        self.socket.close()


def readable(sockets: Sequence[socket.socket], seconds: float) -> list[socket.socket]:
    """Return the sockets that are readable, after waiting for at most ``seconds``.

    ``select.select`` is not used, since it refuses descriptors above 1,023, and a launcher with
    many open files hands such descriptors down.
    """
    poller = select.poll()
    for each in sockets:
        poller.register(each, select.POLLIN)
    ready = {descriptor for descriptor, _ in poller.poll(seconds * 1000)}
    return [each for each in sockets if each.fileno() in ready]


def drain(peers: Sequence[Peer]) -> None:
    """Send the data that still waits and read until the peers have closed, for at most a second.

    Closing a connection with unread data resets it, and then what has been sent may not arrive
    (Linux, tcp_close); so each one is read to its end.
    """
    end = time.monotonic() + _GOODBYE
    while peers and time.monotonic() < end:
        peers = [peer for peer in peers if not _is_over(peer)]
        time.sleep(0.01)


def _is_over(peer: Peer) -> bool:
    """Send and read what is possible now. Return whether the other end has closed."""
    try:
        peer.flush()
        if not peer.unsent:
            peer.socket.shutdown(socket.SHUT_WR)
        while peer.socket.recv(_CHUNK):
            pass
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        pass
    return True


def reach(address: str, port: int) -> str:
    """Return "xmp" for a coordinator, "another program", or why nothing was reached.

    A coordinator speaks first, so nothing is sent.
    """
    try:
        connection = connected(address, port, SECONDS)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with connection:
        try:
            greeting = connection.recv(GREETING_SIZE)
        except OSError:
            return "another program"
    return "xmp" if greeting.startswith(MAGIC) else "another program"
