"""A stranger at torch's or Paddle's store: leads gloo's connections through itself, and forges.

``gloo_stranger.py KIND ADDRESS SIZE OWN FOLDER``, as another user; KIND is "torch" or "paddle". The
store takes what any program writes. Rank 0 of ``SIZE`` ranks has left its address there and waits
for the others' addresses: this program writes what makes rank 0 listen, connects in the place of
the others, and leaves its own address, which is ``OWN`` to them, under rank 0's key. Whatever rank
0 then sends passes here: a message with ``MARKER`` in it becomes a pickle that makes FOLDER when it
is opened. The wire formats are those of torch 2.13 and Paddle 3.3.

It says "connected" when rank 0 has no other connections to wait for; on a line of its standard
input it deletes what it wrote in the others' place, and says "ready"; then "forged" for each
message.
"""

from __future__ import annotations

import os
import pickle
import re
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["MARKER", "Stranger", "at_store"]

MARKER = "A" * 300
"""What rank 0 sends; the forged pickle is shorter."""
_SIGN = b"A" * 60  # gloo cuts what it gathers into pieces
_USER = 65534
_NUMBER = 8  # bytes of a connection's number; those for all ranks end a value in torch's store


class _Runs:
    """A pickle that runs code when it is opened."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self._folder,)


class Stranger:
    """The program, as who started it sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def go_on(self) -> None:
        """Once rank 0 has its connections, which are the stranger's: let the others come."""
        assert self._heard() == "connected"
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._heard() == "ready"

    def has_forged(self) -> bool:
        """Wait for the first forged message; False when the program ends without."""
        return self._heard() == "forged"

    def _heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip()


@contextmanager
def at_store(
    kind: str, address: str, size: int, own: str, folder: str, *before: str
) -> Iterator[Stranger]:
    """Run this program beside the block; ``before``: the words that enter a host of a network."""
    command = [*before, sys.executable, "-IS", __file__, kind, address, str(size), own, folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield Stranger(process)
        finally:
            process.kill()


class _Torch:
    """A client of torch's store."""

    meshes = ("/init1of{}/default_pg/0//cpu//0/{}",)
    """The keys of the ranks of a world; of each group of connections."""

    def __init__(self, host: str, port: int, size: int) -> None:
        self._connection = socket.create_connection((host, port), 60)
        self._send(0, struct.pack("<I", 0x3C85F7CE))

    def get(self, key: str) -> bytes:
        """Its value, once it is there."""
        self._send(6, struct.pack("<Q", 1) + _sized(key.encode()))
        self._received(1)
        self._send(3, _sized(key.encode()))
        return self._received(struct.unpack("<Q", self._received(8))[0])

    def set(self, key: str, value: bytes) -> None:
        self._send(1, _sized(key.encode()) + _sized(value))
        assert self.get(key) == value

    def delete(self, key: str) -> None:
        self._send(8, _sized(key.encode()))
        self._received(8)

    def place(self, value: bytes) -> int:
        """Where port and IPv4 address stand: behind the host's name, two sizes and the family."""
        return 8 + struct.unpack_from("<Q", value)[0] + 8 + 2

    def number(self, value: bytes, size: int, rank: int) -> bytes:
        """What a connection of another rank begins with."""
        return value[-_NUMBER * size :][_NUMBER * rank :][:_NUMBER]

    def _send(self, command: int, data: bytes) -> None:
        self._connection.sendall(bytes([command]) + data)

    def _received(self, size: int) -> bytes:
        return self._connection.recv(size, socket.MSG_WAITALL)


class _Paddle(_Torch):
    """A client of Paddle's store; for two ranks."""

    meshes = ("/0/{1}", "/{1}")

    def __init__(self, host: str, port: int, size: int) -> None:
        self._connection = socket.create_connection((host, port), 60)
        for _ in range(1, size):  # rank 0 waits for as many
            self._send(0, _sized(b"/init/") + struct.pack("<Q", 1))
            self._received(8)

    def get(self, key: str) -> bytes:
        self._send(4, _sized(key.encode()))
        self._received(4)
        self._send(1, _sized(key.encode()))
        return self._received(struct.unpack("<Q", self._received(8))[0])

    def set(self, key: str, value: bytes) -> None:
        self._send(3, _sized(key.encode()) + _sized(value))
        assert self.get(key) == value

    def delete(self, key: str) -> None:
        """Leave it: there is no third rank that would read it."""

    def place(self, value: bytes) -> int:
        return 2

    def number(self, value: bytes, size: int, rank: int) -> bytes:
        """Each connection has a port of its own."""
        return b""

    def _send(self, command: int, data: bytes) -> None:
        self._connection.sendall(struct.pack("<I", command) + data)


def _sized(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _lead(store: _Torch, size: int, own: str) -> list[tuple[socket.socket, socket.socket]]:
    """Come between rank 0 and each other rank; their connections, rank 0's first."""
    found, written = [], []
    for mesh in store.meshes:
        keys = [mesh.format(size, rank) for rank in range(size)]
        value = store.get(keys[0])
        start = store.place(value)
        port, address = struct.unpack_from(">H4s", value, start)

        def at(address: str, port: int, value: bytes = value, start: int = start) -> bytes:
            place = struct.pack(">H", port) + socket.inet_aton(address)
            return value[:start] + place + value[start + len(place) :]

        for key in keys[1:]:  # of two ranks the one with the lower address listens
            store.set(key, at("255.255.255.255", 1))
        sides = {}
        for number in (store.number(value, size, rank) for rank in range(1, size)):
            sides[number] = socket.create_connection((socket.inet_ntoa(address), port), 60)
            sides[number].sendall(number)
        listener = socket.create_server(("", 0))
        store.set(keys[0], at(own, listener.getsockname()[1]))
        found.append((listener, sides))
        written += keys[1:]
    print("connected", flush=True)
    sys.stdin.readline()
    for key in written:
        store.delete(key)
    print("ready", flush=True)
    return [pair for listener, sides in found for pair in _paired(listener, sides)]


def _paired(
    listener: socket.socket, sides: dict[bytes, socket.socket]
) -> Iterator[tuple[socket.socket, socket.socket]]:
    for _ in sides:
        other = listener.accept()[0]
        yield sides[other.recv(len(next(iter(sides))), socket.MSG_WAITALL)], other


def _forged(data: bytes, forgery: bytes) -> bytes:
    """From the first sign of a pickle on, or from the marker."""
    found = re.search(rb"\x80[\4\5]\x95|" + _SIGN, data)
    assert found is not None
    print("forged", flush=True)
    return data[: found.start()] + forgery + data[found.start() + len(forgery) :]


def _relay(sides: list[tuple[socket.socket, socket.socket]], forgery: bytes) -> None:
    to = dict(sides) | {other: first for first, other in sides}
    while to:
        for source in select.select(list(to), [], [])[0]:
            data = source.recv(65536)
            while data and select.select([source], [], [], 0.05)[0]:  # the rest of its message
                more = source.recv(65536)
                if not more:
                    break
                data += more
            if not data:
                return
            to[source].sendall(_forged(data, forgery) if _SIGN in data else data)


def _main(kind: str, address: str, size: str, own: str, folder: str) -> None:
    "loads the codec".encode("idna")  # its file may be one that the other user cannot read
    os.setgid(_USER)
    os.setuid(_USER)
    host, _, port = address.rpartition(":")
    store = {"torch": _Torch, "paddle": _Paddle}[kind](host, int(port), int(size))
    _relay(_lead(store, int(size), own), pickle.dumps(_Runs(folder)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
