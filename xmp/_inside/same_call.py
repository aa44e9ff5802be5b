"""Tells apart calls of ``once_per_host`` that have no order in common.

The calls of a replica's own thread come in the same order in all replicas. A call in a child of a
replica, in another thread or in a signal handler is known by its function: its code, and the values
that it holds, as far as they are plain.
"""

from __future__ import annotations

import functools
import hashlib
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["name_of"]

_DEPTH = 6
_LONGEST = 1000
"""The most items of a container that count; of a longer one the first, the last and the length."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, os.PathLike)


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a call of ``fn``, the same in all processes of a launch that make it."""
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(fn, _DEPTH):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{name}/{digest.hexdigest()}"


def _parts(value: Any, depth: int) -> Iterator[str]:
    """Yield a description of a value in pieces; only its type if nothing plain is in it."""
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
        yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
    elif depth == 0:
        return
    elif isinstance(value, types.FunctionType):
        yield from _parts(value.__code__, depth)
        held = [_content(cell) for cell in value.__closure__ or ()]
        yield from _of_items([value.__defaults__, value.__kwdefaults__, *held], depth)
    elif isinstance(value, types.CodeType):
        yield f"{value.co_filename}:{value.co_firstlineno}:{value.co_name}"
        yield value.co_code.hex()  # two on one line may have the same name
        yield from _of_items([value.co_names, value.co_consts], depth)
    elif isinstance(value, types.MethodType):
        yield from _of_items([value.__func__, value.__self__], depth)
    elif isinstance(value, functools.partial):
        yield from _of_items([value.func, value.args, value.keywords], depth)
    elif isinstance(value, dict):
        yield from _of_items([each for item in value.items() for each in item], depth)
    elif isinstance(value, list | tuple):
        yield from _of_items(value, depth)
    elif isinstance(value, set | frozenset):
        yield from sorted("\1".join(_parts(each, depth - 1)) for each in value)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield f"{value.dtype} {tuple(value.shape)}"  # an array: its content may lie on a device
    else:
        yield from _of_items(getattr(value, "__dict__", {}), depth)


def _of_items(values: Any, depth: int) -> Iterator[str]:
    if isinstance(values, dict):
        values = [each for item in sorted(values.items()) for each in item]
    yield str(len(values))
    if len(values) > _LONGEST:
        values = [*values[: _LONGEST // 2], *values[-_LONGEST // 2 :]]
    for each in values:
        yield from _parts(each, depth - 1)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None
