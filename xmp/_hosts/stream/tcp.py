"""A TCP connection between driver and host, whose ends have proved that they know its secret.

Either end may listen: the other one connects, and both prove the secret by the carrier's handshake
(``sealed``), which gives the keys of the frames. Whatever else connects is closed: at once where
its answer is wrong, and after some seconds where it says nothing.
"""

from __future__ import annotations

import re
import select
import socket
import time
from typing import NamedTuple

from xmp._hosts.carrier.peer import Stranger, send_again_soon
from xmp._hosts.carrier.sealed import GREETING_SIZE, WELCOME_SIZE, Answer, Frames, Keys
from xmp._hosts.carrier.words import Malformed
from xmp._os.names import connected, looked_up

from .frames import Seal

__all__ = ["Callers", "Met", "Secret", "dialled", "in_words", "listening", "port_range"]

_HANDSHAKE = 5.0
"""Seconds for a handshake."""
_WAITING = 16
"""Connections whose handshake is not over; when one more comes, the oldest is closed."""
_BACKLOG = 64
_TICK = 0.5
_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")


class Met(NamedTuple):
    """A connection to the other end."""

    socket: socket.socket
    ours: Seal
    """Of the frames that this end sends."""
    theirs: Seal


class Secret(NamedTuple):
    """What both ends know."""

    text: str
    """In hexadecimal."""
    contents: bool
    """Whether the bytes of files have codes (``Seal``)."""


def port_range(text: str) -> range:
    """Return the ports of "10000-10010", or port 0, any free one, for "". Raise ValueError."""
    if not text:
        return range(1)
    found = _RANGE.fullmatch(text)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 0 < first <= last < 65536:
        raise ValueError(text)
    return range(first, last + 1)


def listening(address: str, ports: range) -> socket.socket:
    """Return a listener at a free port of this address. Raise OSError where there is none."""
    family, _, _, _, place = looked_up(address, 0, socket.SOCK_STREAM)[0]
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Or a port of the range cannot be had for 60 s after a connection (TIME_WAIT, tcp(7)).
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((place[0], port, *place[2:]))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            if port == ports[-1]:
                raise
        else:
            return listener
    raise AssertionError(ports)


def in_words(error: OSError) -> str:
    """Return what the system says of an error, to stand in a sentence."""
    return (error.strerror or str(error)).lower()


def dialled(address: str, port: int, secret: Secret, seconds: float) -> Met:
    """Connect to the other end within so many seconds, and exchange proofs. Raise OSError."""
    connection = connected(address, port, seconds)
    end = time.monotonic() + _HANDSHAKE
    try:
        answer = Answer(_keys(secret), _exactly(connection, GREETING_SIZE, end))
        connection.sendall(answer.data)
        try:
            welcome = _exactly(connection, WELCOME_SIZE, end)
        except ConnectionResetError:
            raise OSError("what answers there has another secret") from None
        return _met(connection, answer.frames(welcome), secret)
    except BaseException as error:
        connection.close()
        if isinstance(error, Malformed):
            raise OSError("another program answers there") from None
        raise


class Callers:
    """Connections at a listener, one of which may be the other end's."""

    def __init__(self, listener: socket.socket, secret: Secret) -> None:
        listener.setblocking(False)
        self._listener, self._secret = listener, secret
        self._waiting: dict[int, tuple[Stranger, float]] = {}
        """By descriptor, oldest first; and until when each may stay."""

    def met(self, local: int = -1) -> Met | None:
        """Wait for the other end, and close the listener; None once ``local`` is readable."""
        try:
            while True:
                ready = self._ready(local)
                if local in ready:
                    return None
                for descriptor in [each for each in self._waiting if each in ready]:
                    frames = self._heard(descriptor)
                    if frames is not None:
                        connection = self._waiting.pop(descriptor)[0].socket
                        return _met(connection, frames, self._secret)
                self._look()
                if self._listener.fileno() in ready:
                    self._accept()
        finally:
            for descriptor in [*self._waiting]:
                self._send_away(descriptor)
            self._listener.close()

    def _ready(self, local: int) -> set[int]:
        poller = select.poll()
        for descriptor in (self._listener.fileno(), local, *self._waiting):
            if descriptor >= 0:
                poller.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poller.poll(_TICK * 1000)}

    def _heard(self, descriptor: int) -> Frames | None:
        try:
            return self._waiting[descriptor][0].read()
        except (Malformed, OSError):
            self._send_away(descriptor)
            return None

    def _look(self) -> None:
        now = time.monotonic()
        for descriptor in [each for each, (_, end) in self._waiting.items() if now >= end]:
            self._send_away(descriptor)

    def _accept(self) -> None:
        if len(self._waiting) >= _WAITING:
            self._send_away(next(iter(self._waiting)))
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        try:
            stranger = Stranger(connection, _keys(self._secret))
        except OSError:
            connection.close()
            return
        self._waiting[connection.fileno()] = stranger, time.monotonic() + _HANDSHAKE

    def _send_away(self, descriptor: int) -> None:
        self._waiting.pop(descriptor)[0].close()


def _keys(secret: Secret) -> Keys:
    return Keys("xmp stream", bytes.fromhex(secret.text))


def _exactly(connection: socket.socket, size: int, end: float) -> bytes:
    data = b""
    while len(data) < size:
        connection.settimeout(max(0.001, end - time.monotonic()))
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        data += piece
    return data


def _met(connection: socket.socket, frames: Frames, secret: Secret) -> Met:
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    send_again_soon(connection)
    ours, theirs = (Seal(key, b"", secret.contents) for key in frames.keys)
    return Met(connection, ours, theirs)
