"""Displays for a notebook's cell, between the text that replicas write: so both keep their order.

The supervisor puts a frame into the launcher's standard output: the launch's mark, a length, and a
``ShowInCell`` in the plain format. Who has read the mark out of its own memory and writes frames
itself can display what it could display anyway: all of a frame is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .plain_format import Malformed, decoded, encoded
from .replica import ShowInCell

__all__ = ["MOST_BYTES", "FrameReader", "frame", "problem"]

MOST_BYTES = 16 * 1024 * 1024
"""The most that one display may have: more makes a page that no browser opens."""
_LENGTH = struct.Struct("<I")
_KINDS = ("display", "update", "clear", "clear and wait")
_MOST_TYPES = 64
_LONGEST_NAME = 1024


def problem(message: ShowInCell) -> str:
    """Why no notebook displays this, or an empty string."""
    if message.kind not in _KINDS:
        return "there is no such kind of display"
    if len(message.types) != len(message.texts) or len(message.types) > _MOST_TYPES:
        return f"it has {len(message.types)} MIME types and {len(message.texts)} texts"
    if any(len(name) > _LONGEST_NAME for name in (message.display_id, *message.types)):
        return "one of its names is too long"
    size = sum(map(len, message.texts)) + len(message.metadata)
    return f"it has {size} characters" if size > MOST_BYTES else ""


def frame(mark: bytes, message: ShowInCell) -> bytes:
    """The bytes to write between two pieces of text."""
    data = encoded(message)
    return mark + _LENGTH.pack(len(data)) + data


class FrameReader:
    """Takes text and frames apart, however they are cut into pieces."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._held = bytearray()
        """What may belong to a frame that has not come as a whole."""

    def feed(self, data: bytes) -> Iterator[bytes | ShowInCell]:
        """What is whole now, in its order; ``b""`` is the end."""
        held = self._held
        held += data
        while held:
            at = held.find(self._mark)
            if at < 0:
                at = len(held) - (self._begun() if data else 0)
            if at:
                yield bytes(held[:at])
                del held[:at]
            size = self._size()
            if size < 0:
                if not data:
                    held.clear()  # the supervisor was killed in the middle of a frame
                return
            message = self._opened(bytes(held[len(self._mark) + _LENGTH.size : size]))
            del held[:size]
            if message is not None:
                yield message

    def _begun(self) -> int:
        """How many of the last bytes may be the first ones of a mark."""
        longest = min(len(self._mark) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(self._mark[:n])), 0)

    def _size(self) -> int:
        """Of the whole frame that begins here; -1 where it has not come yet."""
        head = len(self._mark) + _LENGTH.size
        if len(self._held) < head:
            return -1
        (size,) = _LENGTH.unpack_from(self._held, len(self._mark))
        if size > 4 * MOST_BYTES + 65536:  # a character has up to four bytes
            return head
        return head + size if len(self._held) >= head + size else -1

    def _opened(self, data: bytes) -> ShowInCell | None:
        try:
            message = decoded(data, opens_pickles=False)
        except Malformed:
            return None
        if not isinstance(message, ShowInCell) or problem(message):
            return None
        return message
