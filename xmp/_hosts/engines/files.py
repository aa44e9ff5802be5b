"""Files of a host that the driver asks for: log files of a launch (``gather_logs``)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

__all__ = ["part", "sizes"]


def sizes(paths: Sequence[str]) -> list[int]:
    """Return bytes of each; 0 for what is no regular file, -1 for what is not there."""
    return [_size(path) for path in paths]


def _size(path: str) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def part(path: str, start: int, size: int) -> bytes:
    """Return so many bytes of a regular file; fewer at its end. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        file.seek(start)
        return file.read(size)
