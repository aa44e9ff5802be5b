"""Messages as bytes: a plain format for those whose fields are all plain, a pickle for the others.

Opening a pickle runs code that its sender chose, so everything that a replica sends has plain
fields only. This module writes them one after the other, in the order of the class: each has a
fixed size, or a length in front that is checked against the bytes that are left.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from .catalog import CATALOG, Message
from .timeline import Timeline

__all__ = ["PICKLED", "PLAIN", "Malformed", "decoded", "encoded"]

PICKLED = 0
"""The first byte of a message that is a pickle."""
_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_LENGTH = struct.Struct("<I")
_TIMELINE = struct.Struct("<8q")


class Malformed(ValueError):
    """The bytes are no message that the receiver opens; the text says why."""


# --- fields: (bytes, position) -> (value, next position) ----------------------------------------


def _piece(data: bytes, start: int, size: int) -> tuple[bytes, int]:
    end = start + size
    if end > len(data):
        raise Malformed(f"{size} bytes are announced where {len(data) - start} are left")
    return data[start:end], end


def _int(data: bytes, start: int) -> tuple[int, int]:
    piece, end = _piece(data, start, _INT.size)
    return _INT.unpack(piece)[0], end


def _float(data: bytes, start: int) -> tuple[float, int]:
    piece, end = _piece(data, start, _FLOAT.size)
    return _FLOAT.unpack(piece)[0], end


def _put_bool(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _bool(data: bytes, start: int) -> tuple[bool, int]:
    piece, end = _piece(data, start, 1)
    if piece not in (b"\0", b"\1"):
        raise Malformed("a truth value is neither 0 nor 1")
    return piece == b"\1", end


def _put_bytes(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _bytes(data: bytes, start: int) -> tuple[bytes, int]:
    head, start = _piece(data, start, _LENGTH.size)
    return _piece(data, start, _LENGTH.unpack(head)[0])


def _put_optional(value: bytes | None) -> bytes:
    return b"\0" if value is None else b"\1" + _put_bytes(value)


def _optional(data: bytes, start: int) -> tuple[bytes | None, int]:
    given, start = _bool(data, start)
    return _bytes(data, start) if given else (None, start)


def _put_text(value: str) -> bytes:
    # The message of an exception may hold surrogates, as file names do: PEP 383.
    return _put_bytes(value.encode("utf-8", "surrogatepass"))


def _text(data: bytes, start: int) -> tuple[str, int]:
    piece, end = _bytes(data, start)
    try:
        return piece.decode("utf-8", "surrogatepass"), end
    except UnicodeDecodeError:
        raise Malformed("a text is not UTF-8") from None


def _put_ints(value: list[int]) -> bytes:
    return _LENGTH.pack(len(value)) + b"".join(map(_INT.pack, value))


def _ints(data: bytes, start: int) -> tuple[list[int], int]:
    head, start = _piece(data, start, _LENGTH.size)
    (count,) = _LENGTH.unpack(head)
    piece, end = _piece(data, start, count * _INT.size)
    return [number for (number,) in _INT.iter_unpack(piece)], end


def _put_texts(value: list[str]) -> bytes:
    return _LENGTH.pack(len(value)) + b"".join(map(_put_text, value))


def _texts(data: bytes, start: int) -> tuple[list[str], int]:
    head, start = _piece(data, start, _LENGTH.size)
    (count,) = _LENGTH.unpack(head)
    if count * _LENGTH.size > len(data) - start:
        raise Malformed(f"{count} texts are announced in {len(data) - start} bytes")
    texts = []
    for _ in range(count):
        text, start = _text(data, start)
        texts.append(text)
    return texts, start


def _put_timeline(value: Timeline) -> bytes:
    return _TIMELINE.pack(*vars(value).values())


def _timeline(data: bytes, start: int) -> tuple[Timeline, int]:
    piece, end = _piece(data, start, _TIMELINE.size)
    return Timeline(*_TIMELINE.unpack(piece)), end


_FIELDS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes, int], tuple[Any, int]]]] = {
    "int": (_INT.pack, _int),
    "float": (_FLOAT.pack, _float),
    "bool": (_put_bool, _bool),
    "str": (_put_text, _text),
    "bytes": (_put_bytes, _bytes),
    "bytes | None": (_put_optional, _optional),
    "list[str]": (_put_texts, _texts),
    "list[int]": (_put_ints, _ints),
    "Timeline": (_put_timeline, _timeline),
}


# --- messages -----------------------------------------------------------------------------------


class _Plain(NamedTuple):
    """The functions that write and read the messages of one class."""

    number: int
    """The first byte."""
    cls: Any
    writers: tuple[Callable[[Any], bytes], ...]
    readers: tuple[Callable[[bytes, int], tuple[Any, int]], ...]


def _annotations(cls: Any) -> list[str]:
    """Return the class's annotations as texts; NamedTuple wraps them into ForwardRefs."""
    return [getattr(each, "__forward_arg__", each) for each in cls.__annotations__.values()]


PLAIN = {name: cls for name, cls in CATALOG.items() if {*_annotations(cls)} <= {*_FIELDS}}
"""The classes whose messages are sent in the plain format, by name."""


def _table() -> dict[str, _Plain]:
    table = {}
    for number, (name, cls) in enumerate(sorted(PLAIN.items()), PICKLED + 1):
        fields = [_FIELDS[annotation] for annotation in _annotations(cls)]
        writers, readers = tuple(w for w, _ in fields), tuple(r for _, r in fields)
        table[name] = _Plain(number, cls, writers, readers)
    return table


_plain = _table()
_by_number = {plain.number: plain for plain in _plain.values()}


def encoded(message: Message) -> bytes:
    """Return a message as bytes, of which the first is the number of its class."""
    name = type(message).__name__
    plain = _plain.get(name)
    if plain is None:
        # As a plain tuple: pickling the class by its name would touch pages in a fork.
        return bytes([PICKLED]) + pickle.dumps((name, *message), protocol=5)
    parts = [write(value) for write, value in zip(plain.writers, message, strict=True)]
    return bytes([plain.number]) + b"".join(parts)


def decoded(data: bytes, opens_pickles: bool) -> Message:
    """Return the message of these bytes. Raises Malformed, also for a pickle that may not be
    opened."""
    if not data:
        raise Malformed("it is empty")
    if data[0] == PICKLED and opens_pickles:
        name, *fields = pickle.loads(memoryview(data)[1:])
        message: Message = CATALOG[name]._make(fields)
        return message
    plain = _by_number.get(data[0])
    if plain is None:
        raise Malformed(f"its kind is {data[0]}, which only trusted senders use or no message has")
    fields, position = [], 1
    for read in plain.readers:
        value, position = read(data, position)
        fields.append(value)
    if position != len(data):
        raise Malformed(f"{len(data) - position} bytes follow a whole {plain.cls.__name__}")
    whole: Message = plain.cls._make(fields)
    return whole
