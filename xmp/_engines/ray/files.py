"""Files on their way through Ray: pieces, each an object in its store, put together again."""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from xmp._payload import map_file
from xmp._processes.system import linux, seals

__all__ = ["PIECE", "OfferedFiles", "fetched", "offsets", "pieces_of", "received"]

PIECE = 16 << 20
"""Bytes. A file of any size fits through a store of any size, piece by piece; one of 75 MB is the
least that Ray allows (2.60, _private/ray_constants.py)."""
_AHEAD = 1
"""Pieces of a file that its host copies into the store while this process writes one down."""
_AT_ONCE = threading.BoundedSemaphore(4)
"""Pieces of all files that are on their way to this process: they share its host's store."""
_LOOK_EVERY = 2.0


def offsets(size: int) -> Iterator[tuple[int, int]]:
    """Where each piece of a file begins, and its size."""
    for offset in range(0, size, PIECE):
        yield offset, min(PIECE, size - offset)


def pieces_of(descriptor: int, size: int) -> Iterator[pickle.PickleBuffer]:
    """The parts of a file, out of band for Ray's pickler: each is copied once, into the store."""
    whole = map_file(descriptor, size) if size else memoryview(b"")
    for offset, count in offsets(size):
        yield pickle.PickleBuffer(whole[offset : offset + count])


class OfferedFiles:
    """Files that another process reads piece by piece; each is closed when all of it was read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        self._files: dict[int, tuple[memoryview, int]] = {}
        """By number: the mapped file, and how many bytes of it have not been read."""

    def add(self, descriptor: int) -> tuple[int, int]:
        """The number and the size of a file, whose descriptor is closed here."""
        try:
            seals.seal_size(descriptor)
            size = os.fstat(descriptor).st_size
            whole = map_file(descriptor, size) if size else memoryview(b"")
        finally:
            os.close(descriptor)
        with self._lock:
            self._next += 1
            if size:
                self._files[self._next] = whole, size
            return self._next, size

    def piece(self, number: int, offset: int, size: int) -> pickle.PickleBuffer:
        """So many bytes of a file. Each part of it can be read once."""
        with self._lock:
            whole, left = self._files.pop(number)
            if left > size:
                self._files[number] = whole, left - size
        return pickle.PickleBuffer(whole[offset : offset + size])


def received(objects: Sequence[Any]) -> int:
    """A new memory file with the content of these objects of Ray, one after the other."""
    import ray

    def contents() -> Generator[Any, None, None]:
        for index, each in enumerate(objects):
            ray.wait(list(objects[index : index + 1 + _AHEAD]), num_returns=1, timeout=0)  # pull
            yield ray.get(each)

    return _written(contents())


def fetched(
    size: int, ask: Callable[[int, int], Any], look: Callable[[], object] = lambda: None
) -> int:
    """A new memory file; ``ask`` returns the object of a piece that its host reads meanwhile.

    ``look`` is called while a piece does not come: it raises where none will.
    """
    import ray

    def contents() -> Generator[Any, None, None]:
        waiting, left = deque[Any](), deque(offsets(size))
        try:
            while waiting or left:
                while left and len(waiting) <= _AHEAD and _AT_ONCE.acquire(blocking=not waiting):
                    waiting.append(ask(*left.popleft()))
                while not ray.wait([waiting[0]], timeout=_LOOK_EVERY)[0]:
                    look()
                yield ray.get(waiting[0])
                waiting.popleft()
                _AT_ONCE.release()
        finally:
            for _ in waiting:
                _AT_ONCE.release()

    return _written(contents())


def _written(parts: Generator[Any, None, None]) -> int:
    descriptor = linux.memory_file("xmp-received")
    try:
        for part in parts:
            view = memoryview(part)
            while view.nbytes:
                view = view[os.write(descriptor, view) :]
            del part, view  # or the store keeps it until the next one has come
    except BaseException:
        os.close(descriptor)
        raise
    finally:
        parts.close()
    return descriptor
