"""Files on their way through Ray: pieces, each an object in its store, put together again."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xmp._processes.system import linux

__all__ = ["PIECE", "fetched", "offsets", "piece", "received"]

PIECE = 32 << 20
"""Bytes. An object that is larger than Ray's store cannot be sent; this is below any store."""


def piece(descriptor: int, offset: int, size: int) -> pickle.PickleBuffer:
    """A part of a file, out of band for Ray's pickler: it is copied once, into the store."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if not count:
            raise ValueError(f"the file has {offset + done} bytes, not {offset + size}")
        done += count
    return pickle.PickleBuffer(data)


def offsets(size: int) -> Iterator[tuple[int, int]]:
    """Where each piece of a file begins, and its size."""
    for offset in range(0, size, PIECE):
        yield offset, min(PIECE, size - offset)


def received(objects: Sequence[Any]) -> int:
    """A new memory file with the content of these objects of Ray, one after the other."""
    import ray

    return _written(ray.get(each) for each in objects)


def fetched(size: int, ask: Callable[[int, int], Any]) -> int:
    """A new memory file; ``ask`` returns the object of a piece that its host reads meanwhile."""
    import ray

    def pieces() -> Iterator[Any]:
        asked: list[Any] = []
        for offset, count in offsets(size):
            asked.append(ask(offset, count))
            if len(asked) > 1:
                yield ray.get(asked.pop(0))
        for each in asked:
            yield ray.get(each)

    return _written(pieces())


def _written(parts: Iterator[Any]) -> int:
    descriptor = linux.memory_file("xmp-received")
    try:
        for part in parts:
            view = memoryview(part)
            while view.nbytes:
                view = view[os.write(descriptor, view) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
