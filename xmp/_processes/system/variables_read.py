"""Which environment variables Python code has asked for by name.

An import that reads a variable decides for all forks of its process. Tables cannot know what
libraries and scripts read; ``os.environ`` can: it encodes each name that it is asked for, and
decodes each that it yields (CPython, Lib/os.py, class _Environ). What native code reads by
getenv(3) is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["ALL", "VariablesRead", "differs", "reads_all"]

ALL = "*"
"""In place of a name: all variables were read."""
_environ: Any = os.environ


def differs(name: str, reader: str) -> str:
    """The error for a variable that forked replicas cannot each have a value of their own of."""
    return (
        f"env= gives {name} a different value on some ranks, but {reader} reads {name} while it "
        "is imported, which happens once for all forked replicas. Read it inside the function, or "
        'pass start_method="spawn".'
    )


def reads_all(names: str, reader: str) -> str:
    """The warning where a script has gone through all variables, these perhaps among them."""
    return (
        f"env= gives {names} a different value on some ranks, and {reader} reads all variables "
        "while it is imported, which happens once for all forked replicas: what it keeps of them "
        'is none of these values. Read them inside the function, or pass start_method="spawn"'
    )


class VariablesRead:
    """Grows while it notes."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def names(self) -> list[str]:
        """The names; ``*`` where all were read and that counts."""
        return sorted(self._names)

    def first_of(self, names: Iterable[str]) -> str:
        """The first of these names that was read; empty if none was."""
        return next((name for name in names if name in self._names), "")

    @contextmanager
    def noted(self, sweeps: bool = False) -> Iterator[None]:
        """Note what is read inside.

        ``sweeps``: what goes through all variables has read them all. It does not count for a
        library, which copies the environment for a child process; a script may look for its own.
        """
        encode, decode = _environ.encodekey, _environ.decodekey
        swept = ""

        def note(name: Any) -> Any:
            if isinstance(name, str) and name != swept:
                self._names.add(name)
            return encode(name)

        def sweep(name: Any) -> Any:
            nonlocal swept
            swept = decode(name)
            if sweeps:
                self._names.add(ALL)
            return swept

        _environ.encodekey, _environ.decodekey = note, sweep
        try:
            yield
        finally:
            _environ.encodekey, _environ.decodekey = encode, decode
