"""The replica's end of its connection to the supervisor: sends reports, asks for values and turns.

The supervisor sends nothing but answers. It also keeps what local replicas share (``share``)
and whose turn it is (``turn``); both survive the death of any replica.

A signal's handler may raise while an answer is awaited. So questions are numbered, the replica
drops an answer to any question but the last, and gives back what it had asked for.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from xmp._payload import load_image, map_file
from xmp._processes.messages import replica as messages
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Connection, prepared
from xmp._processes.messages.outcomes import packed_outcome, received_image

__all__ = ["SupervisorChannel"]

T = TypeVar("T")
_ENTERED = prepared(messages.FunctionEntered())
"""Pickling it in a fork would cost 40 pages."""


class SupervisorChannel:
    """Satisfies ``_inside.Channel``."""

    def __init__(self, connection: Connection, local_rank: int = 0) -> None:
        self._connection = connection
        connection.opens_pickles = False  # the answers are plain
        self._lock = threading.Lock()
        """Held from a question to its answer."""
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._given: dict[str, threading.Event] = {}
        """By key: set once a thread of this process has given the value."""
        self._other_threads: tuple[int, ...] = ()
        """The local ranks of the other replicas of this process."""
        self.local_rank = local_rank
        self._steps = 0
        self._flag: memoryview | None = None
        self._agreed = 0

    def close(self) -> None:
        """In the supervisor, which has prepared it for the replicas."""
        self._connection.close()

    def split(self, local_ranks: Sequence[int]) -> list[SupervisorChannel]:
        """A channel for each replica of this process; all use the one connection."""
        channels = []
        for local_rank in local_ranks:
            channel = copy.copy(self)
            channel.local_rank = local_rank
            channel._other_threads = tuple(each for each in local_ranks if each != local_rank)
            channels.append(channel)
        return channels

    def send(self, message: Message, descriptors: list[int] | tuple[int, ...] = ()) -> None:
        with self._sending:
            self._connection.send(message, descriptors)

    def _ask(self, question: Callable[[int], Message]) -> tuple[Any, list[int]]:
        """Number a question and send it; returns the answer and its descriptors."""
        with self._lock:
            number = next(self._numbers)
            self.send(question(number))
            while True:
                answer, descriptors = self._connection.recv()
                if answer[0] == number:
                    return answer, descriptors
                for descriptor in descriptors:
                    os.close(descriptor)

    def report_entered(self) -> None:
        self._connection.send_prepared(_ENTERED)

    def preempted(self) -> bool:
        """Whether all replicas end at this call; asks the supervisor while they agree on it."""
        self._steps += 1
        if self._flag is not None and not self._flag[0]:
            return False
        if os.getpid() != os.getpgrp():
            return False  # a child of the replica, whose connection this is not
        if not self._agreed:
            step = (self.local_rank, self._steps, self._flag is None)
            answer, descriptors = self._ask(lambda number: messages.AskPreempted(number, *step))
            self._agreed = answer.step
            if descriptors:
                self._flag = map_file(descriptors[0], 1).cast("B")
                os.close(descriptors[0])
        return 0 < self._agreed <= self._steps

    def report_last_step(self) -> None:
        """Report that this thread asks ``preempted`` no more; a process just ends."""
        if self._steps:
            self.send(messages.LastStep(self.local_rank))

    def report_phase(self, name: str) -> None:
        """Report what begins now, before the function does."""
        self.send(messages.PhaseBegun(name, time.monotonic_ns()))

    def share(self, key: str, make: Callable[[], T], owner: int | None = None) -> T:
        """The value that one local replica makes, for all; its exception, if it raises."""
        if owner in self._other_threads:
            # A thread that waits for an answer holds the connection: the owner could not ask.
            self._given.setdefault(key, threading.Event()).wait()
        try:
            return self._share(key, make, owner is None or owner == self.local_rank)
        except BaseException:
            # If it was to make it, another may.
            self.send(messages.WithdrawValue(key, self.local_rank))
            raise

    def _share(self, key: str, make: Callable[[], T], may_make: bool) -> T:
        answer, descriptors = self._ask(
            lambda number: messages.WantValue(number, key, self.local_rank, may_make)
        )
        if isinstance(answer, messages.SharedValue):
            image = received_image(answer.data, answer.size, descriptors)
            try:
                value = load_image(image)
            finally:
                image.close()
            if answer.good:
                return value  # type: ignore[no-any-return]
            raise value
        try:
            value = make()
        except (Exception, SystemExit) as error:  # the others must not wait for ever
            self._give(key, False, error)
            raise
        self._give(key, True, value)
        return value

    def _give(self, key: str, good: bool, value: Any) -> None:
        try:
            image = packed_outcome(value)
        except Exception as error:
            words = f"{key}: {value!r} cannot be sent to the other replicas: {error}"
            good, image = False, packed_outcome(RuntimeError(words))
        descriptors = [image.descriptor] if image.data is None else []
        self.send(messages.GiveValue(key, good, image.data, image.size), descriptors)
        image.close()
        self._given.setdefault(key, threading.Event()).set()

    def show_in_cell(
        self, kind: str, display_id: str, types: list[str], texts: list[str], metadata: str
    ) -> None:
        """Display this in the notebook's cell; returns when the supervisor has passed it on."""
        fields = (kind, display_id, types, texts, metadata)
        self._ask(lambda number: messages.ShowInCell(number, *fields))

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Hold the turn: at most one local replica at a time is inside."""
        with self._turns.setdefault(key, threading.Lock()):
            try:
                self._ask(lambda number: messages.TakeTurn(number, key))
                yield
            finally:
                try:
                    self.send(messages.ReturnTurn(key))
                except BaseException:
                    self.send(
                        messages.ReturnTurn(key)
                    )  # interrupted: to send it twice does no harm
                    raise
