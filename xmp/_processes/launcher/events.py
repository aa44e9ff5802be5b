"""The events of a launch for ``events=``: each change of its state, in order, each once.

Most of them come from the supervisor (``supervisor/event_recorder``).
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from xmp._os import log, signals
from xmp._words.errors import PlanError, ReplicaError, ReplicaTimeout
from xmp._words.event import Event
from xmp._words.types import JobPlan, Observer

__all__ = ["EventStream", "NullEvents"]

Listener = Callable[[Event], None]
_DETAILS = ("rank", "pid", "message", "exit_code", "signal")
_count = itertools.count(1)


class NullEvents:
    """The events of a call without ``events=``: it drops them."""

    def begin(self, called: int, plan: JobPlan | None, restart: int = 0) -> None:
        """Note that the launch has been planned."""

    def add(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Take in what the supervisor has reported."""

    def end(self, error: BaseException | None) -> None:
        """Note that the launch has ended, with this error or without one."""

    def drop(self) -> None:
        """In a forked child of the launcher: the launch belongs to the parent."""


class EventStream(NullEvents):
    """The events of one call, from ``begin`` to ``end``."""

    def __init__(self, observer: Observer, several: bool = False) -> None:
        """``several``: the call may make several attempts; ``finish`` reports its end."""
        self._observer = observer
        self._several = several
        self._listeners: list[Listener] = []
        self._failed: set[Listener] = set()
        self._waiting: deque[Event] = deque()
        self._delivering = False
        self._over = False
        self._launch = ""
        self._called = 0
        self._clock = 0.0
        """The host's wall clock at the call."""
        self._last = 0.0
        self._restart = 0

    def begin(self, called: int, plan: JobPlan | None, restart: int = 0) -> None:
        """Note that the launch has been planned. Raise PlanError if the file cannot be opened."""
        self._restart = restart
        if not self._launch:
            self._called = called
            self._clock = time.time() - (time.monotonic_ns() - called) / 1e9
            self._launch = f"{os.getpid()}-{next(_count)}"
            events: Any = self._observer.events
            self._listeners = [events if callable(events) else _File(events)]
        words = f"runtime {plan.runtime}, nprocs {len(plan.hosts[0].replicas)}" if plan else ""
        self.say("planned", pid=os.getpid(), words=words)

    def say(
        self, name: str, rank: int | None = None, pid: int | None = None, words: str = ""
    ) -> None:
        """Report what happens in this process now."""
        self.add([(name, time.monotonic_ns(), rank, pid, words)])

    def add(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Report these: (name, monotonic nanoseconds, rank, pid, words, exit code, signal)."""
        self._waiting += [self._event(*event) for event in events]
        if self._delivering:
            return  # a listener itself launches or waits: it gets these after the present one
        self._delivering = True
        try:
            while self._waiting:
                event = self._waiting.popleft()
                for listener in self._listeners:
                    self._deliver(listener, event)
        finally:
            self._delivering = False
            if self._over:
                self.drop()

    def _event(self, name: str, at: int, *details: Any) -> Event:
        # An event that arrives late is not sorted in among those already reported.
        self._last = max(self._last, round((at - self._called) / 1e9, 6))
        moment, known = round(self._clock + self._last, 6), dict(zip(_DETAILS, details))
        return Event(name, self._last, moment, self._launch, restart=self._restart, **known)

    def _deliver(self, listener: Listener, event: Event) -> None:
        try:
            with signals.as_usual():
                listener(event)
        except Exception as error:
            if signals.from_handler(error):
                raise
            if listener not in self._failed:
                self._failed.add(listener)
                text = traceback.format_exc().rstrip()
                log.error("events= failed at %r; the launch continues.\n%s", event.name, text)

    def end(self, error: BaseException | None) -> None:
        """Note that the launch, or this attempt, has ended."""
        if isinstance(error, ReplicaError):
            caused = not isinstance(error, ReplicaTimeout)
            rank, pid = (error.rank, error.pid) if caused else (None, None)
            self.say("verdict", rank, pid, f"{error}".partition("\n")[0])
        if not self._several:
            self.finish(error)

    def finish(self, error: BaseException | None) -> None:
        """Report the last event."""
        words = "" if error is None else type(error).__name__
        if error is not None and not isinstance(error, ReplicaError):
            words += f": {error}".partition("\n")[0]
        self._over = True
        self.say("finished", words=words)

    @contextmanager
    def here(self, called: int, plan: JobPlan) -> Iterator[None]:
        """While inside, this process is the launch's only replica."""
        self.begin(called, plan)
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise
        self.end(None)

    def drop(self) -> None:
        """Report nothing more."""
        for listener in self._listeners:
            if isinstance(listener, _File):
                listener.close()
        self._listeners = []


class _File:
    """JSON lines, appended: whole lines, also when several launches have the same file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Without O_NONBLOCK the launch would wait for a reader of a FIFO, here and at each event.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._rest = b""
        """What a reader that is late has left of a line."""
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except (OSError, ValueError) as error:
            unread = isinstance(error, OSError) and error.errno == errno.ENXIO
            why = (
                "it is a FIFO that no program reads"
                if unread
                else getattr(error, "strerror", error)
            )
            raise PlanError(
                f"events={os.fspath(path)!r}: cannot be opened for appending: {why}; give the "
                "path of a file that can be, or a function",
                code="XMP-P14",
            ) from None

    def __call__(self, event: Event) -> None:
        self._write(self._rest)
        self._write(json.dumps(asdict(event)).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        whole = len(line)
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except BlockingIOError:
                # A line that has not begun is lost; the rest of another goes before the next one.
                self._rest = b"" if len(line) == whole and not self._rest else line
                raise BlockingIOError(
                    errno.EAGAIN, "its reader does not read, and events are lost"
                ) from None
        self._rest = b""

    def close(self) -> None:
        os.close(self._descriptor)
