"""Files of a host of the Ray cluster: its actor reads them, and the driver gets them in pieces.

The functions above run in the actor, the class in the driver.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import stat
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from . import files
from .answers import Connected

__all__ = ["RayHostFiles", "has", "part", "sizes"]

_PATIENCE = 8.0
"""Seconds for an answer: the actor reads a piece in tens of milliseconds."""


def has(path: str) -> bool:
    """Whether this file is there."""
    return os.path.lexists(path)


def sizes(paths: Sequence[str]) -> list[int]:
    """In bytes; 0 for what is not there, or no regular file."""
    return [_size(path) for path in paths]


def _size(path: str) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def part(path: str, offset: int, size: int) -> pickle.PickleBuffer:
    """So many bytes of a regular file; fewer at its end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        file.seek(offset)
        return pickle.PickleBuffer(file.read(size))


class RayHostFiles:
    """Those of the host that has this actor; OSError says why one cannot be read."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._ray = actor, Connected()

    def sizes(self, paths: Sequence[str]) -> list[int]:
        found: list[int] = self._answer(sizes.__name__, list(paths))
        return found

    def has(self, path: str) -> bool:
        return bool(self._answer(has.__name__, path))

    def parts(self, path: str, start: int, size: int) -> Generator[memoryview, None, None]:
        def ask(offset: int, count: int) -> Any:
            return self._ask(part.__name__, path, start + offset, count).future()

        found = files.parts_of(size, ask, lambda: self.has(path))
        try:
            while True:
                with _as_os_error():
                    piece = next(found, None)
                if piece is None:
                    return
                yield memoryview(piece)
                del piece  # or the store keeps it until the next one has come
        finally:
            found.close()

    def _ask(self, question: str, *details: Any) -> Any:
        self._ray.check()
        asked = self._actor.look_at_files.options(concurrency_group="files")
        return asked.remote(question, *details)

    def _answer(self, question: str, *details: Any) -> Any:
        with _as_os_error():
            return self._ray.answer(self._ask(question, *details).future(), _PATIENCE)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """What Ray raises, as an OSError that says why a host's files cannot be had."""
    import ray

    try:
        yield
    except TimeoutError:
        why = f"it has not answered for {_PATIENCE:g} s"
        raise TimeoutError(errno.ETIMEDOUT, why) from None
    except ray.exceptions.RayTaskError as error:  # what a function above has raised
        why = getattr(error.cause, "strerror", None) or str(error.cause)
        raise OSError(errno.EIO, why) from None
    except Exception as error:  # of Ray: the host has gone, or the program has disconnected it
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[0] if lines else type(error).__name__
        raise OSError(errno.ECONNRESET, f"cannot be reached: {why}") from None
