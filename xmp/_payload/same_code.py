"""Compares the code of a function that travels by its name with that of its sender.

A process loads the module of such a function once. Where the sender has loaded a newer file since,
the receiver would run the old one, and nothing would tell.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

__all__ = ["code_of", "differs"]

_SIZE = 16  # bytes


def code_of(fn: Callable[..., Any]) -> bytes:
    """Return a hash of a function's code, the same wherever its lines stand; empty without one."""
    code = getattr(fn, "__code__", None)
    return _hash(code) if isinstance(code, CodeType) else b""


def differs(fn: Callable[..., Any], code: bytes) -> bool:
    """Return whether a function that has come by its name has other code than its sender's."""
    module = sys.modules.get(getattr(fn, "__module__", "") or "")
    try:
        named = operator.attrgetter(fn.__qualname__)(module)
    except AttributeError:
        return False  # it has come by value
    return named is fn and bool(code) and code_of(fn) != code


@functools.lru_cache(maxsize=256)
def _hash(code: CodeType) -> bytes:
    digest = hashlib.blake2b(digest_size=_SIZE)
    for part in _parts(code):
        digest.update(part + b"\0")
    return digest.digest()


def _parts(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_flags)).encode()
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _parts(const)
        elif isinstance(const, frozenset):  # in no order that two processes share
            yield repr(sorted(map(repr, const))).encode()
        else:
            yield repr(const).encode("utf-8", "surrogatepass")
