"""Files that go to several hosts: each is put into Ray's store once, and copied once to a host.

All hosts get a file as soon as one of them needs it: the first host is sent its order before the
others, and they need not wait for the same bytes then.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from . import files
from .answers import Connected, all_came

__all__ = ["SentFiles"]

_AHEAD = 2
"""Pieces in the store that not all hosts have copied, beside the one that is being put there."""
_PATIENCE = 12
"""Seconds for a piece; then its host has gone, or is stopped: what hears it finds out."""


class SentFiles:
    """The files of one launch after the other, by the file that a descriptor leads to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._actors: Sequence[Any] = ()
        self._ray = Connected()
        self._next = 0
        self._numbers: dict[tuple[int, int], int] = {}
        self._waits = True
        """Whether all hosts answer."""
        self._launch = 0
        """Counts launches."""

    def go_to(self, actors: Sequence[Any]) -> None:
        """Where they go."""
        self._actors = actors

    def number(self, descriptor: int) -> int:
        """The number under which hosts find the file; takes over the descriptor.

        Raises what Ray raises where it cannot carry the file.
        """
        try:
            found = os.fstat(descriptor)
            key = found.st_dev, found.st_ino
            with self._lock:
                if key not in self._numbers:
                    self._next += 1
                    self._send(descriptor, found.st_size)
                    self._numbers[key] = self._next
                return self._numbers[key]
        finally:
            os.close(descriptor)

    def _send(self, descriptor: int, size: int) -> None:
        import ray

        waiting, launch = deque[list[Future[Any]]](), self._launch
        pieces = files.pieces_of(descriptor, size)
        for (offset, _), each in zip(files.offsets(size), pieces):
            if launch != self._launch:
                return
            self._ray.check()
            stored = ray.put(each)
            piece = self._next, size, offset, stored
            waiting.append([self._brought(actor, *piece).future() for actor in self._actors])
            del piece
            del stored  # Ray keeps it until these have ended
            while len(waiting) > _AHEAD:
                self._wait(waiting.popleft())
        for tasks in waiting:
            self._wait(tasks)

    def _brought(self, actor: Any, *piece: Any) -> Any:
        return actor.bring.options(concurrency_group="files").remote(*piece)

    def _wait(self, tasks: list[Future[Any]]) -> None:
        launch, seconds = self._launch, 0
        while self._waits and launch == self._launch:
            if all_came(tasks, 1.0):
                self._waits = all(task.exception() is None for task in tasks)
                return
            self._ray.check()
            seconds += 1
            self._waits = seconds < _PATIENCE

    def close(self) -> None:
        """Send nothing more."""
        self._launch += 1

    def clear(self) -> None:
        """The launch is over: hosts forget what they have not used."""
        self._launch += 1  # what is being sent is given up
        with self._lock:
            if self._numbers:
                for actor in self._actors:
                    actor.forget.options(concurrency_group="files").remote(self._next)
            self._numbers.clear()
