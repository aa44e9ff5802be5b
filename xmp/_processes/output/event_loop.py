"""The supervisor's selector loop, and the copying of the replicas' output in it.

A source is read while its sink has room. A replica that writes faster than the launcher's stream
takes it waits in its own ``write``. With a log file it does not wait: text that the stream cannot
take yet is shown later, from the file.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from functools import partial

from xmp._processes.system import linux

from .streams import Sink, Source

__all__ = ["EventLoop", "OutputPump"]

_PORTIONS = 64


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


class OutputPump:
    """All sources and sinks of a launch, in the supervisor's loop."""

    def __init__(self, loop: EventLoop, sinks: Sequence[Sink]) -> None:
        self._loop = loop
        self._sinks = sinks
        self._paused: list[Source] = []
        self._behind: list[Source] = []
        self._ended: list[Source] = []
        """The sources that are behind and whose replica has ended."""

    @property
    def waiting(self) -> bool:
        return bool(self._behind) or any(sink.waiting for sink in self._sinks)

    def add(self, source: Source) -> None:
        self._loop.listen(source.descriptor, partial(self._copy, source))

    def _copy(self, source: Source) -> None:
        if source.full:
            self._loop.forget(source.descriptor)
            self._paused.append(source)
        elif not source.copy() and source.ended:  # `hurry` may already have read the data
            self._loop.forget(source.descriptor)
        self._note(source)
        if source.unread:  # pass EPIPE or SIGPIPE on to the replica: else `yes` would never end
            self._loop.forget(source.descriptor)
            source.close()

    def _note(self, source: Source) -> None:
        if source.behind and source not in self._behind:
            self._behind.append(source)

    def end(self, source: Source) -> None:
        """Copy the rest of a source whose replica has ended."""
        source.drain()
        self._loop.forget(source.descriptor)
        if source in self._paused:
            self._paused.remove(source)
        self._note(source)
        if source.behind:
            self._ended.append(source)
        else:
            source.finish()

    def hurry(self, sources: Sequence[Source]) -> None:
        """Copy what is there now, as far as the sinks take it: a prompt must come after it."""
        for source in sources:
            for _ in range(_PORTIONS):
                if source.full or not self._loop.listens(source.descriptor) or not source.copy():
                    break
            self._note(source)
        self.write_out()

    def write_out(self) -> None:
        """Write what the sinks take now, and have the loop wake up when they take more."""
        for sink in self._sinks:
            sink.flush()
        self._catch_up()
        for sink in self._sinks:
            if not sink.is_file:
                wanted = sink.waiting or any(source.sink is sink for source in self._behind)
                self._loop.wake_for_write(sink.descriptor, bool(wanted))
        self._resume()

    def _catch_up(self) -> None:
        """Show a portion of each source in turn: one flood must not hide the others' lines."""
        for source in list(self._behind):
            source.catch_up()
            if not source.behind:
                self._behind.remove(source)
                if source in self._ended:
                    self._ended.remove(source)
                    source.finish()

    def _resume(self) -> None:
        paused, self._paused = self._paused, []
        for source in paused:
            if source.full:
                self._paused.append(source)
            else:
                self.add(source)
