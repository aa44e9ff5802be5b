"""Reads the user's sources without running them, within limits, whatever is in them.

What cannot be read here, Python reads later in a replica, and reports what is wrong with it.
"""

from __future__ import annotations

import ast
import os
import warnings
import zipfile

from xmp._os.imports import without_collections

__all__ = ["MOST", "is_kept", "parsed"]

MOST = 1 << 19
"""The most bytes of a file that is read; to parse a generated one takes seconds at 1 MB, and
gigabytes of memory at 10 MB."""


def is_kept(path: str) -> bool:
    """Return whether another process can read this file too, and twice: no FIFO, no descriptor.

    /dev/stdin is a file where the shell has redirected it, and another one in each process.
    """
    return os.path.isfile(path) and not os.path.abspath(path).startswith(("/dev/", "/proc/"))


def parsed(path: str, most: int = MOST, source: bytes | None = None) -> ast.Module:
    """Parse a file, which may lie in a zip file; longer than ``most``, it counts as empty.

    ``source`` is what was read of it before. Raises OSError, and SyntaxError or ValueError for
    what is no Python.
    """
    source = _read(path, most + 1) if source is None else source
    if len(source) > most:
        return ast.Module([], [])
    with warnings.catch_warnings(), without_collections():
        warnings.simplefilter("ignore")  # the program shows them itself
        try:
            return ast.parse(source, os.path.abspath(path))
        except (RecursionError, MemoryError):  # nested too deeply for a tree
            return ast.Module([], [])


def _read(path: str, most: int) -> bytes:
    """Return the first bytes of a file."""
    archive, inner = _archive(path)
    if not inner:
        with open(path, "rb") as file:
            return file.read(most)
    try:
        with zipfile.ZipFile(archive) as files, files.open(inner) as member:
            return member.read(most)
    except Exception as error:  # a broken one raises errors of several kinds, zlib's among them
        raise OSError(f"{path}: {error}") from error


def _archive(path: str) -> tuple[str, str]:
    """Return the file that the path names or leads through, and the rest of the path."""
    outer, inner = path, ""
    while not os.path.exists(outer):
        outer, _, last = outer.rpartition(os.sep)
        inner = f"{last}/{inner}" if inner else last
        if not outer:
            return path, ""
    return (outer, inner) if os.path.isfile(outer) else (path, "")
