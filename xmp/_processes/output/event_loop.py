"""A selector loop that waits for descriptors and calls their handlers; the supervisor uses it."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from xmp._processes.system import linux

__all__ = ["EventLoop"]


class EventLoop:
    """A selector that wakes up for input, for room to write, and when a time-out is over."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._writing: set[int] = set()

    def listen(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever there is something to read."""
        self._handlers[descriptor] = handler
        self._selector.register(descriptor, selectors.EVENT_READ)

    def forget(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._writing.discard(descriptor)
            self._selector.unregister(descriptor)

    def listens(self, descriptor: int) -> bool:
        return descriptor in self._handlers

    def turn(self, timeout: float | None) -> None:
        """Wait for at most ``timeout`` seconds and call the handlers of readable descriptors."""
        most = None if timeout is None else min(timeout, linux.LONGEST_WAIT)
        for key, mask in self._selector.select(most):
            if mask & selectors.EVENT_READ and key.fd in self._handlers:
                self._handlers[key.fd]()

    def close(self) -> None:
        """Forget all descriptors."""
        self._handlers.clear()
        self._selector.close()

    def wake_for_write(self, descriptor: int, wanted: bool) -> None:
        """Begin or stop waking up when the descriptor takes more data."""
        if wanted == (descriptor in self._writing):
            return
        self._writing ^= {descriptor}
        writes = selectors.EVENT_WRITE if wanted else 0
        if descriptor in self._handlers:
            self._selector.modify(descriptor, selectors.EVENT_READ | writes)
        elif wanted:
            self._selector.register(descriptor, writes)
        else:
            self._selector.unregister(descriptor)
