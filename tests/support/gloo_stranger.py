"""A stranger at torch's store: leads gloo's connections with rank 0 through itself, and forges.

``gloo_stranger.py ADDRESS SIZE OWN FOLDER``, as another user. The store takes what any program
writes. Rank 0 of ``SIZE`` ranks has left its address there and waits for the others' addresses:
this program writes what makes rank 0 listen, connects in the place of the others, and leaves its
own address, which is ``OWN`` to them, under rank 0's key. Whatever rank 0 then sends passes here:
a message with ``MARKER`` in it becomes a pickle that makes FOLDER when it is opened. The wire
formats are those of torch 2.13 and its gloo.

It says "connected" when rank 0 has no other connections to wait for; on a line of its standard
input it deletes what it wrote in the others' place, and says "ready"; then "forged" for each message.
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

__all__ = ["MARKER", "USER", "Stranger", "at_store"]

MARKER = "A" * 300
"""What rank 0 sends; the forged pickle is shorter."""
_SIGN = b"A" * 60  # gloo cuts what it gathers into pieces
USER = 65534
_KEY = "/init1of{}/default_pg/0//cpu//0/{}"
_VALIDATE, _SET, _GET, _WAIT, _DELETE = 0, 1, 3, 6, 8
_MAGIC = 0x3C85F7CE
_NUMBER = 8  # bytes of a connection's number; the numbers for each rank end the value


class Runs:
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
def at_store(address: str, size: int, own: str, folder: str, *before: str) -> Iterator[Stranger]:
    """Run this program beside the block; ``before``: the words that enter a host of a network."""
    command = [*before, sys.executable, "-IS", __file__, address, str(size), own, folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield Stranger(process)
        finally:
            process.kill()


class _Store:
    """A client of torch's store."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = socket.create_connection((host, port), 60)
        self._connection.sendall(struct.pack("<BI", _VALIDATE, _MAGIC))

    def get(self, key: str) -> bytes:
        """Its value, once it is there."""
        self._connection.sendall(struct.pack("<BQ", _WAIT, 1) + _sized(key.encode()))
        self._received(1)
        self._connection.sendall(bytes([_GET]) + _sized(key.encode()))
        return self._received(struct.unpack("<Q", self._received(8))[0])

    def set(self, key: str, value: bytes) -> None:
        self._connection.sendall(bytes([_SET]) + _sized(key.encode()) + _sized(value))
        assert self.get(key) == value

    def delete(self, key: str) -> None:
        self._connection.sendall(bytes([_DELETE]) + _sized(key.encode()))
        self._received(8)

    def _received(self, size: int) -> bytes:
        return self._connection.recv(size, socket.MSG_WAITALL)


def _sized(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _at(value: bytes, address: str, port: int) -> bytes:
    """A rank's value in the store with another address."""
    start = _place(value)
    return value[:start] + struct.pack(">H", port) + socket.inet_aton(address) + value[start + 6 :]


def _place(value: bytes) -> int:
    """Where port and IPv4 address stand: behind the host's name, two sizes and the family."""
    return 8 + struct.unpack_from("<Q", value)[0] + 8 + 2


def _lead(store: _Store, size: int, own: str) -> list[tuple[socket.socket, socket.socket]]:
    """Come between rank 0 and each other rank; the two connections, rank 0's first."""
    keys = [_KEY.format(size, rank) for rank in range(size)]
    value = store.get(keys[0])
    port, address = struct.unpack_from(">H4s", value, _place(value))
    with socket.create_server(("", 0)) as listener:
        for key in keys[1:]:  # of two ranks the one with the lower address listens
            store.set(key, _at(value, "255.255.255.255", 1))
        numbers = value[-_NUMBER * size :]
        sides = {}
        for rank in range(1, size):
            number = numbers[_NUMBER * rank : _NUMBER * (rank + 1)]
            sides[number] = socket.create_connection((socket.inet_ntoa(address), port), 60)
            sides[number].sendall(number)
        store.set(keys[0], _at(value, own, listener.getsockname()[1]))
        print("connected", flush=True)
        sys.stdin.readline()
        for key in keys[1:]:
            store.delete(key)
        print("ready", flush=True)
        others = [listener.accept()[0] for _ in sides]
    return [(sides[other.recv(_NUMBER, socket.MSG_WAITALL)], other) for other in others]


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


def _main(address: str, size: str, own: str, folder: str) -> None:
    "loads the codec".encode("idna")  # its file may be one that the other user cannot read
    os.setgid(USER)
    os.setuid(USER)
    host, _, port = address.rpartition(":")
    sides = _lead(_Store(host, int(port)), int(size), own)
    _relay(sides, pickle.dumps(Runs(folder)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
