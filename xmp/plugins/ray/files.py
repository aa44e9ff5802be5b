"""Files on their way through Ray: pieces, each an object in its store, put together again."""

from __future__ import annotations

import os
import pickle
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any

from xmp._payload import map_file
from xmp._processes.system import linux

from .answers import all_came

__all__ = ["PIECE", "IncomingFiles", "OfferedFiles", "fetched", "offsets", "parts_of", "pieces_of"]

PIECE = 16 << 20
"""Bytes. A file of any size fits through a store of any size, piece by piece; one of 75 MB is the
least that Ray allows (2.60, _private/ray_constants.py)."""
_AHEAD = 1
"""Pieces of a file that its host copies into the store while this process writes one down."""
_AT_ONCE = threading.BoundedSemaphore(4)
"""Pieces of all files that are on their way to this process: they share its host's store."""
_LOOK_EVERY = 2.0
_STALLED = 60.0


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
            linux.seal_size(descriptor)
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


class IncomingFiles:
    """Files that a driver sends piece by piece, before the packets that refer to them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._files: dict[int, tuple[int, int]] = {}
        """By number: a memory file, and how many bytes of it have not come."""
        self._forgotten = 0
        """The last number of a launch that is over."""

    def bring(self, number: int, size: int, offset: int, data: Any) -> None:
        """A piece has come; ``size`` is that of its file."""
        view = memoryview(data)
        with self._changed:
            if number <= self._forgotten:
                return
            descriptor, left = self._files.get(number, (-1, size))
            if descriptor < 0:
                descriptor = linux.memory_file("xmp-received")
            self._files[number] = descriptor, left - view.nbytes
            while view.nbytes:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
            self._changed.notify_all()

    def take(self, number: int, seconds: float = _STALLED) -> int | None:
        """The whole file, None if it is not needed more; TimeoutError if no more of it comes."""
        with self._changed:
            while (left := self._left(number)) != 0:
                if number <= self._forgotten:
                    return None
                if not self._changed.wait_for(lambda: self._left(number) != left, seconds):
                    raise TimeoutError(f"nothing of a file has come for {seconds:g} s")
            return self._files.pop(number)[0]

    def _left(self, number: int) -> int:
        """Bytes that have not come; -1: none has, -2: they are not needed."""
        if number <= self._forgotten:
            return -2
        return self._files[number][1] if number in self._files else -1

    def forget(self, last: int) -> None:
        """Files up to this number are not needed any more."""
        with self._changed:
            self._forgotten = max(self._forgotten, last)
            for number in [each for each in self._files if each <= last]:
                os.close(self._files.pop(number)[0])
            self._changed.notify_all()


def fetched(
    size: int, ask: Callable[[int, int], Future[Any]], look: Callable[[], object] = lambda: None
) -> int:
    """A new memory file of what ``parts_of`` yields."""
    return _written(parts_of(size, ask, look))


def parts_of(
    size: int, ask: Callable[[int, int], Future[Any]], look: Callable[[], object]
) -> Generator[Any, None, None]:
    """The pieces of a file; ``ask`` returns the future of one that its host reads meanwhile.

    ``look`` is called while a piece does not come: it raises where none will.
    """
    waiting, left = deque[Future[Any]](), deque(offsets(size))
    try:
        while waiting or left:
            while left and len(waiting) <= _AHEAD and _AT_ONCE.acquire(blocking=not waiting):
                waiting.append(ask(*left.popleft()))
            while not all_came([waiting[0]], _LOOK_EVERY):
                look()
            yield waiting[0].result()
            waiting.popleft()
            _AT_ONCE.release()
    finally:
        for _ in waiting:
            _AT_ONCE.release()


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
