"""Writes plain values as bytes and reads them back; reading runs nothing that a sender chose.

For replicas without a common key, where a pickle could be a stranger's. Plain are None, truth
values, numbers, text and bytes, and lists, tuples, dicts and OrderedDicts of plain values; no other
subclass of them. Attributes of an OrderedDict do not travel: torch's ``state_dict()`` notes the
versions of its modules in one, ``_metadata``.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from xmp._os.imports import loaded_framework

__all__ = ["Malformed", "NotPlain", "array_of", "decoded", "described", "encoded"]

_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_DEEPEST = 100

Spell = Callable[[Any], Any]
"""Returns a plain value in place of one that is not plain, or None."""


class Malformed(ValueError):
    """The bytes are no plain value."""


class NotPlain(TypeError):
    """A value is not plain, nor made of plain values; the text is its type."""


def encoded(value: Any, spell: Spell = lambda value: None) -> bytes:
    """Return the value as bytes; raise NotPlain."""
    out: list[bytes] = []
    _put(value, spell, out, _DEEPEST)
    return b"".join(out)


def decoded(data: bytes, restore: Spell = lambda spelled: spelled) -> Any:
    """Return the value; raise Malformed. ``restore`` makes a value of what ``spell`` gave."""
    value, end = _take(memoryview(data), 0, restore, _DEEPEST)
    if end != len(data):
        raise Malformed(f"{len(data) - end} bytes follow the value")
    return value


# --- leaves: one letter for each type, then a length and the content ------------------------------


def _of_int(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _of_complex(value: complex) -> bytes:
    return _COMPLEX.pack(value.real, value.imag)


def _of_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


_LEAVES: dict[type, tuple[bytes, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    type(None): (b"n", lambda value: b"", lambda data: None),
    bool: (b"b", lambda value: b"\1" if value else b"", bool),
    int: (b"i", _of_int, lambda data: int.from_bytes(data, "little", signed=True)),
    float: (b"f", _FLOAT.pack, lambda data: _FLOAT.unpack(data)[0]),
    complex: (b"c", _of_complex, lambda data: complex(*_COMPLEX.unpack(data))),
    str: (b"s", _of_text, lambda data: data.decode("utf-8", "surrogatepass")),
    bytes: (b"y", bytes, bytes),
}
_TREES: dict[type, bytes] = {list: b"l", tuple: b"t", dict: b"d", OrderedDict: b"o"}
_PAIRS = dict, OrderedDict
_SPELLED = b"x"
_leaf_readers = {letter: read for letter, _, read in _LEAVES.values()}
_trees_by_letter = {letter: kind for kind, letter in _TREES.items()}


def _put(value: Any, spell: Spell, out: list[bytes], deepest: int) -> None:
    kind = type(value)
    if deepest < 0:
        raise NotPlain(f"{kind.__qualname__} within {_DEEPEST} others, or within itself")
    if kind in _LEAVES:
        letter, write, _ = _LEAVES[kind]
        data = write(value)
        out += (letter, _LENGTH.pack(len(data)), data)
        return
    if kind in _TREES:
        items = [each for pair in value.items() for each in pair] if kind in _PAIRS else value
        out += (_TREES[kind], _LENGTH.pack(len(items)))
    else:
        spelled = spell(value)
        if spelled is None:
            raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")
        out += (_SPELLED, _LENGTH.pack(1))
        items = [spelled]
    for item in items:
        _put(item, spell, out, deepest - 1)


def _take(data: memoryview, start: int, restore: Spell, deepest: int) -> tuple[Any, int]:
    letter = bytes(data[start : start + 1])
    start += 1 + _LENGTH.size
    if start > len(data) or deepest < 0:
        raise Malformed("the value is cut off" if deepest >= 0 else "too many lists in lists")
    (size,) = _LENGTH.unpack_from(data, start - _LENGTH.size)
    if size > len(data) - start:
        left = len(data) - start
        raise Malformed(f"{size} bytes or items are announced where {left} are left")
    if letter in _leaf_readers:
        return _leaf(letter, bytes(data[start : start + size])), start + size
    items = []
    for _ in range(size):
        item, start = _take(data, start, restore, deepest - 1)
        items.append(item)
    return _tree(letter, items, restore), start


def _leaf(letter: bytes, data: bytes) -> Any:
    try:
        return _leaf_readers[letter](data)
    except (ValueError, struct.error) as error:
        raise Malformed(str(error)) from None


def _tree(letter: bytes, items: list[Any], restore: Spell) -> Any:
    if letter == _SPELLED and len(items) == 1:
        return restore(items[0])
    kind = _trees_by_letter.get(letter)
    if kind is None or (kind in _PAIRS and len(items) % 2):
        raise Malformed(f"{letter!r} is no kind of value")
    try:
        return kind(zip(items[::2], items[1::2])) if kind in _PAIRS else kind(items)
    except TypeError as error:
        raise Malformed(str(error)) from None  # a list as key


# --- numpy arrays, as memory and a description of plain values: type, shape and order ------------


_KINDS = "biufcMmSU"


def described(value: Any) -> tuple[tuple[Any, ...], memoryview] | None:
    """Return the description and memory of a numpy array or number; None for any other value."""
    numpy = loaded_framework("numpy")
    if numpy is None:
        return None
    is_number = isinstance(value, numpy.generic)
    if type(value) is not numpy.ndarray and not (is_number and type(value) is value.dtype.type):
        return None
    name = _name(value.dtype)
    if not name:
        return None
    array: Any = numpy.asarray(value)
    order = "F" if array.flags.fnc else "C"
    flat = numpy.ascontiguousarray(array.reshape(-1, order=order))
    shape = None if is_number else tuple(array.shape)
    return (name, shape, order), memoryview(flat.view(numpy.uint8))


def array_of(description: tuple[Any, ...], memory: Any) -> Any:
    """Return the array over this writable memory, or the number.

    Raises ValueError or TypeError where the description fits no array of numbers or texts.
    """
    import numpy

    name, shape, order = description
    flat = numpy.frombuffer(memory, numpy.uint8).view(_dtype(numpy, name))
    return flat[0] if shape is None else flat.reshape(shape, order=order)


def _name(dtype: Any) -> str:
    """Return the name of a type without references, which ``_dtype`` knows; "" for other types."""
    if dtype.type.__module__ == "ml_dtypes":  # bfloat16, the floats of 8 bits
        return str(dtype.name)
    return str(dtype.str) if dtype.kind in _KINDS and dtype.itemsize else ""


def _dtype(numpy: Any, name: str) -> Any:
    if name.isidentifier():
        import ml_dtypes

        dtype = numpy.dtype(getattr(ml_dtypes, name, None))
    else:
        dtype = numpy.dtype(name)
    if _name(dtype) != name:
        raise ValueError(f"{name!r} is no type of numbers or texts")
    return dtype
