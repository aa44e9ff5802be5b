"""Seals of memory files: operations that are forbidden to every process that has the file."""

from __future__ import annotations

import fcntl
import os

from . import linux

__all__ = ["has_fixed_size", "has_memory_files", "seal", "seal_size", "seals_of"]

_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_WRITE = 1, 2, 4, 8
_F_SEALS_ALL = _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_WRITE


def seal(descriptor: int) -> None:
    """Make a memory file immutable, so that every process that maps it sees the same bytes."""
    _add_seals(descriptor, _F_SEALS_ALL)


def seal_size(descriptor: int) -> None:
    """Fix the size of a memory file: truncating a file kills processes that map it by SIGBUS."""
    _add_seals(descriptor, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW)


def _add_seals(descriptor: int, seals: int) -> None:
    try:
        fcntl.fcntl(descriptor, _F_ADD_SEALS, seals)
    except OSError:
        pass  # a temporary file cannot be sealed; no other process has its descriptor


def seals_of(descriptor: int) -> int | None:
    """Return a memory file's seals; None for any other file.

    The kernel answers from the inode alone and waits for nothing, unlike fstat(2), which a file
    system in user space may answer late or never.
    """
    try:
        return fcntl.fcntl(descriptor, _F_GET_SEALS)
    except OSError:
        return None


def has_fixed_size(descriptor: int) -> bool:
    """Return whether the file is a memory file that can no longer be truncated."""
    return bool((seals_of(descriptor) or 0) & _F_SEAL_SHRINK)


def has_memory_files() -> bool:
    """Return whether ``memory_file`` makes files that have seals."""
    descriptor = linux.memory_file("xmp-probe")
    try:
        return seals_of(descriptor) is not None
    finally:
        os.close(descriptor)
