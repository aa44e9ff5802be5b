"""Messages in packets: most are one packet; a large one, or one with many descriptors, is several.

A local socket of kind SOCK_SEQPACKET carries a packet whole or not at all, up to the size of its
send buffer, and at most 253 descriptors with it (SCM_MAX_FD: unix(7)).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence

from .plain_format import Malformed

__all__ = ["APART", "DESCRIPTORS", "PIECE", "WHOLE", "Assembly", "close_all", "in_packets"]

DESCRIPTORS = 250
PIECE = 96 * 1024
WHOLE = b"."
APART = b"!"
"""A whole message that may come between the packets of another."""
_FIRST, _MORE, _LAST = b"(", b"+", b")"
_TOTAL = struct.Struct("<Q")


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def in_packets(data: bytes, descriptors: list[int]) -> Iterator[tuple[bytes, list[int]]]:
    """Yield a message's packets, each with its descriptors; the first of several has the length."""
    if len(data) <= PIECE and len(descriptors) <= DESCRIPTORS:
        yield WHOLE + data, descriptors
        return
    count = max(-(-len(data) // PIECE), -(-len(descriptors) // DESCRIPTORS), 2)
    for index in range(count):
        mark = _FIRST + _TOTAL.pack(len(data)) if index == 0 else _MORE
        piece = data[index * PIECE : (index + 1) * PIECE]
        beside = descriptors[index * DESCRIPTORS : (index + 1) * DESCRIPTORS]
        yield (_LAST if index == count - 1 else mark) + piece, beside


class Assembly:
    """The part that has arrived of the message being received on one connection."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        """The most bytes of a message, if its sender is not trusted; None: no limit."""
        self._total = -1
        """The length of the whole message; -1: none is arriving."""
        self._data = bytearray()
        self._descriptors: list[int] = []

    def add(self, packet: bytes, descriptors: list[int]) -> tuple[bytes, list[int]] | None:
        """Take one packet over. Return the message if it is complete.

        A sender that was interrupted may never send the rest of a message, or may leave a packet
        out: a message that is shorter than announced is dropped.
        """
        mark, data = packet[:1], packet[1:]
        if mark == APART:
            return data, descriptors
        if mark in (WHOLE, _FIRST):
            self.drop()
        if mark == WHOLE:
            return data, descriptors
        if mark == _FIRST:
            if len(data) < _TOTAL.size:
                raise Malformed("its length is missing")
            (self._total,), data = _TOTAL.unpack_from(data), data[_TOTAL.size :]
        elif mark not in (_MORE, _LAST):
            raise Malformed("a packet of it has no mark")
        if self._total < 0:
            close_all(descriptors)
            return None
        return self._joined(data, descriptors, mark == _LAST)

    def _joined(
        self, data: bytes, descriptors: list[int], last: bool
    ) -> tuple[bytes, list[int]] | None:
        if self._most is not None and self._total > self._most:
            raise Malformed(f"it would have {self._total} bytes; {self._most} are allowed")
        if len(self._data) + len(data) > self._total:
            raise Malformed(f"it is longer than the {self._total} bytes that it announced")
        if self._most is not None and len(self._descriptors) + len(descriptors) > 1:
            raise Malformed("it has more than one descriptor")
        self._data += data
        self._descriptors += descriptors
        if not last:
            return None
        whole = bytes(self._data), self._descriptors
        complete, self._descriptors = len(self._data) == self._total, []
        self.drop()
        if complete:
            return whole
        close_all(whole[1])
        return None

    def drop(self) -> None:
        """Drop the part that has arrived of an incomplete message."""
        close_all(self._descriptors)
        self._total, self._data, self._descriptors = -1, bytearray(), []
