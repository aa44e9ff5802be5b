"""Displays for a notebook's cell, sent within the text that replicas write so that order is kept.

The supervisor puts a frame into the launcher's standard output: the launch's mark, a length, and a
``ShowInCell`` in the plain format. A replica that finds the mark in its memory and writes frames
itself gains nothing: all of a frame is checked, and it can display the same anyway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from .plain_format import Malformed, decoded, encoded
from .replica import ShowInCell

__all__ = ["MOST_BYTES", "FrameReader", "frame", "problem"]

MOST_BYTES = 16 * 1024 * 1024
"""The most characters of one display: with more, no browser opens the page."""
_LENGTH = struct.Struct("<I")
_KINDS = ("display", "update", "clear", "clear and wait")
_MOST_TYPES = 64
_LONGEST_NAME = 1024


def problem(message: ShowInCell) -> str:
    """Return why no notebook displays this, or an empty string."""
    if message.kind not in _KINDS:
        return "there is no such kind of display"
    if len(message.types) != len(message.texts) or len(message.types) > _MOST_TYPES:
        return f"it has {len(message.types)} MIME types and {len(message.texts)} texts"
    if any(len(name) > _LONGEST_NAME for name in (message.display_id, *message.types)):
        return "one of its names is too long"
    size = sum(map(len, message.texts)) + len(message.metadata)
    return f"it has {size} characters" if size > MOST_BYTES else ""


def frame(mark: bytes, message: ShowInCell) -> bytes:
    """Return the bytes of a display, to be written between two pieces of text."""
    data = encoded(message)
    return mark + _LENGTH.pack(len(data)) + data


class FrameReader:
    """A reader that separates text and frames, however the data is cut into pieces."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._held = bytearray()
        """Data that may belong to a frame of which a part is still missing."""

    def feed(self, data: bytes) -> Iterator[bytes | ShowInCell]:
        """Yield the text and displays that ``data`` completes, in order; ``b""`` is the end."""
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
        """Return how many bytes at the end may be the beginning of a mark."""
        longest = min(len(self._mark) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(self._mark[:n])), 0)

    def _size(self) -> int:
        """Return the size of the frame at the beginning; -1 if it is not complete yet."""
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
