"""Where replicas of every system leave their times, and wait until the benchmark has looked.

A file and nothing else, so that it is the same work under every system: no queue, no manager, no
shared memory that one of them might be better at.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_WORD = struct.Struct("q")
_PIDS = 0  # the first column; times are in the others


@dataclass(frozen=True)
class Meeting:
    """A table of 8-byte numbers: one row per column of times, one entry per replica."""

    path: str
    count: int

    def mark(self, rank: int, column: int = 1, at: int = 0) -> None:
        """Leave the time (monotonic nanoseconds; now, unless given) and the system's name."""
        at = at or time.monotonic_ns()
        file = os.open(self.path, os.O_RDWR)
        os.pwrite(file, _WORD.pack(os.getpid()), self._place(rank, _PIDS))
        os.pwrite(file, _WORD.pack(at), self._place(rank, column))
        os.close(file)

    def wait(self) -> None:
        """Wait, without using the processor, while ``held`` lasts."""
        file = os.open(self.path, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_SH)
        os.close(file)

    def times(self, column: int = 1) -> list[int]:
        """Return what every replica has left in a column; 0 where it has not been yet."""
        return self._column(column)

    def pids(self) -> list[int]:
        """Return the processes of the replicas that have been here."""
        return [pid for pid in self._column(_PIDS) if pid]

    def complete(self) -> bool:
        """Whether every replica has been here."""
        return all(self.times())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the replicas that wait here."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def clear(self) -> None:
        """Forget an earlier round."""
        with open(self.path, "wb"):
            pass

    def _place(self, rank: int, column: int) -> int:
        return _WORD.size * (column * self.count + rank)

    def _column(self, column: int) -> list[int]:
        with open(self.path, "rb") as file:
            file.seek(self._place(0, column))
            data = file.read(_WORD.size * self.count).ljust(_WORD.size * self.count, b"\0")
        return [value for (value,) in _WORD.iter_unpack(data)]
