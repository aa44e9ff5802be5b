"""Notes the environment variables that Python code reads by name, and which module reads them.

An import that reads a variable decides for all forks of its process. No table can list the
variables that libraries and scripts read, but ``os.environ`` knows them: it encodes each name that
is looked up, and decodes each name that it yields (CPython, Lib/os.py, class _Environ). Reads of
native code by getenv(3) are not seen. If a module calls a library's function, what that reads
counts as the module's.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from xmp._os.imports import site_folders

from . import interpreter

__all__ = ["ALL", "VariablesRead", "differs", "innermost", "is_of_a_library", "reads_all"]

ALL = "*"
"""Stands for a name if all variables were read."""
_MAPPING = frozenset({"os", "collections.abc", "_collections_abc"})
"""The modules of ``os.environ``'s own methods."""


def innermost(frame: FrameType | None) -> str:
    """Return the file of the innermost module whose body runs above this frame; "" if none does."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            file = frame.f_globals.get("__file__")
            if isinstance(file, str):  # otherwise a text that a module executes, or a cell
                return file
        frame = frame.f_back
    return ""


def is_of_a_library(file: str) -> bool:
    """Return whether the file is an installed module, Python's or xmp's: not the user's program."""
    return os.path.abspath(file).startswith(_libraries())


@functools.lru_cache(maxsize=1)
def _libraries() -> tuple[str, ...]:
    return (*site_folders(), os.path.dirname(os.__file__) + os.sep, interpreter.package_folder)


_environ: Any = os.environ


def differs(name: str, reader: str) -> str:
    """Return the error for a variable of which forked replicas cannot each have their own value."""
    return (
        f"env= gives {name} a different value on some ranks, but {reader} reads {name} while it "
        "is imported, which happens once for all forked replicas. Read it inside the function, or "
        'pass start_method="spawn".'
    )


def reads_all(names: str, reader: str) -> str:
    """Return the warning for a script that has iterated over all variables, these included."""
    return (
        f"env= gives {names} a different value on some ranks, and {reader} reads all variables "
        "while it is imported, which happens once for all forked replicas: what it keeps of them "
        'is none of these values. Read them inside the function, or pass start_method="spawn"'
    )


class VariablesRead:
    """The variables read so far; it grows within ``noted``."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._own: dict[str, str] = {}
        self._swept: set[str] = set()
        """Names that one expression iterates over: ``dict(os.environ)`` then looks up each."""
        self._sweeper: tuple[int, int] | None = None

    def names(self) -> list[str]:
        """Return the names; with ``*`` if the program's own modules have read all."""
        return sorted(self._names)

    def own(self) -> dict[str, str]:
        """Return the names that the program's own modules have read, each with the file."""
        return self._own

    def first_of(self, names: Iterable[str]) -> str:
        """Return the first of these names that was read; "" if none was."""
        return next((name for name in names if name in self._names), "")

    @contextmanager
    def noted(self, script: bool = False) -> Iterator[None]:
        """Note the variables read inside; for a ``script`` also its own modules that read them.

        A module of the program that iterates over all variables counts as having read them all: it
        may look for its own. A library does so to copy them for a child process, or to look for its
        own by a prefix (tqdm, fsspec), and is not counted.
        """
        is_of_a_library("")  # first: modules that this imports read variables, too
        encode, decode = _environ.encodekey, _environ.decodekey

        def note(name: Any) -> Any:
            if isinstance(name, str):
                self._note(name, sys._getframe(1), script)
            return encode(name)

        def sweep(name: Any) -> Any:
            text = decode(name)
            self._sweep(text, sys._getframe(1), script)
            return text

        _environ.encodekey, _environ.decodekey = note, sweep
        try:
            yield
        finally:
            _environ.encodekey, _environ.decodekey = encode, decode
            self._sweeper = None

    def _note(self, name: str, frame: FrameType | None, script: bool) -> None:
        reader = _caller(frame)
        if name in self._swept and _place(reader) == self._sweeper:
            return
        self._names.add(name)
        if script:
            self._note_own(name, reader)

    def _sweep(self, name: str, frame: FrameType | None, script: bool) -> None:
        reader = _caller(frame)
        if _place(reader) != self._sweeper:
            self._sweeper = _place(reader)
            self._swept.clear()
            if script and self._note_own(ALL, reader):
                self._names.add(ALL)
        self._swept.add(name)

    def _note_own(self, name: str, reader: FrameType | None) -> bool:
        if name not in self._own:
            file = innermost(reader)
            if not file or is_of_a_library(file):
                return False
            self._own[name] = file
        return True


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the code that uses ``os.environ``, above the methods of that."""
    while frame is not None and frame.f_globals.get("__name__") in _MAPPING:
        frame = frame.f_back
    return frame


def _place(frame: FrameType | None) -> tuple[int, int] | None:
    """Return the place of the code: the same for all reads of one expression."""
    return None if frame is None else (id(frame), frame.f_lasti)
