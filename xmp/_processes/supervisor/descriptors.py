"""The supervisor's descriptors: those that came with the order, and its own, with high numbers."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from xmp._payload import Image
from xmp._processes.messages.connection import Connection
from xmp._processes.messages.order import LaunchOrder
from xmp._processes.system.descriptors import move_above

__all__ = ["OwnDescriptors", "Received", "drain", "wake_on_ends"]


@dataclass(frozen=True)
class Received:
    """The launcher's order, and the descriptors that came with it by their purpose."""

    order: LaunchOrder
    at: int
    """When the order came, in monotonic nanoseconds."""
    streams: list[int]
    image: Image
    tracker: int | None
    leases: dict[str, int]
    arguments: list[int]

    @classmethod
    def of(cls, order: LaunchOrder, descriptors: list[int], at: int) -> Received:
        """Sort the descriptors by purpose, in the order that ``LaunchOrder`` lists."""
        streams, rest = descriptors[:3], descriptors[3:]
        image = order.take_image(rest)
        tracker = rest.pop(0) if order.call.state.tracker else None
        leases = dict(zip(order.leases, rest, strict=False))
        return cls(order, at, streams, image, tracker, leases, rest[len(leases) :])


@dataclass(frozen=True)
class OwnDescriptors:
    """Descriptors that no replica keeps: above its own, so that one call in it closes them all."""

    connection: Connection
    """The connection to the launcher."""
    lifeline: int
    """A pipe that ends when the launcher is gone."""
    replicas_lifeline: int
    """A pipe that the replicas watch; its other end stays open as long as this process lives."""
    wakeup: int
    """A pipe that is readable when a child has ended."""

    @classmethod
    def move_above(cls, above: int, connection: Connection, lifeline: int) -> OwnDescriptors:
        """Move connection and lifeline, and make the others; SIGCHLD is received from now on."""
        connection = connection.moved(above)
        connection.opens_pickles = False  # the order was the last pickle
        lifeline = move_above(lifeline, above)
        watched, _ = (move_above(end, above) for end in os.pipe())
        # A child of Python's os.fork() forgets signals that came before its first steps; a blocked
        # one stays pending, also across exec, until the replica can report it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return cls(connection, lifeline, watched, wake_on_ends(above)[0])


def wake_on_ends(above: int) -> tuple[int, int]:
    """Return both ends of a pipe that becomes readable whenever a child has ended."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    heard, said = (move_above(end, above) for end in os.pipe())
    for end in (heard, said):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(said, warn_on_full_buffer=False)
    return heard, said


def drain(descriptor: int) -> None:
    """Empty the pipe of ``wake_on_ends``."""
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
