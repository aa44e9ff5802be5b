"""Descriptors of objects that are pickled: queues, locks, connections of multiprocessing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xmp._os import signals

__all__ = ["Collector", "Descriptor", "HostsCollector", "arrived", "spawning"]

arrived: list[int] = []
"""The descriptors that came with the call which this process loads."""


class Descriptor:
    """Stands for a descriptor in a packed call; multiprocessing calls ``detach``."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """Return the descriptor's number here; the caller owns it."""
        return arrived[self.index]


class Collector:
    """Collects the descriptors of pickled objects; multiprocessing takes it for a ``Popen``."""

    DupFd = Descriptor

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, descriptor: int) -> int:
        with signals.blocked():
            self.descriptors.append(os.dup(descriptor))
            return len(self.descriptors) - 1

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class HostsCollector(Collector):
    """Refuses descriptors: what they refer to exists on one host only."""

    def duplicate_for_child(self, descriptor: int) -> int:
        raise TypeError(
            "an object with a file descriptor (a pipe, a connection, a queue of multiprocessing) "
            "belongs to this host, and cannot be sent to several"
        )


@contextmanager
def spawning(collector: Collector) -> Iterator[None]:
    from multiprocessing import context

    before = context.get_spawning_popen()
    set_popen: Any = context.set_spawning_popen
    set_popen(collector)
    try:
        yield
    finally:
        set_popen(before)
