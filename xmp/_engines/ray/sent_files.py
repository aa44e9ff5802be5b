"""Files that go to several hosts: each is put into Ray's store once, and copied once to a host."""

from __future__ import annotations

import os
import threading
from typing import Any

from . import files

__all__ = ["SentFiles"]


class SentFiles:
    """The files of one launch, by the file that a descriptor leads to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[tuple[int, int], list[Any]] = {}

    def objects(self, descriptor: int) -> list[Any]:
        """The pieces in Ray's store; takes over the descriptor."""
        import ray

        try:
            found = os.fstat(descriptor)
            key = found.st_dev, found.st_ino
            with self._lock:
                if key not in self._objects:
                    pieces = files.pieces_of(descriptor, found.st_size)
                    self._objects[key] = [ray.put(each) for each in pieces]
                return self._objects[key]
        finally:
            os.close(descriptor)

    def clear(self) -> None:
        """The launch is over: Ray may forget them."""
        with self._lock:
            self._objects.clear()
