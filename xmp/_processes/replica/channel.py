"""The replica's end of its connection to the supervisor: tells outcomes, asks for turns.

The supervisor answers only what is asked. It also keeps what local replicas share (``share``)
and whose turn it is (``turn``); both survive the death of any replica.

A signal's handler may raise while an answer is awaited. So questions are numbered, and what answers
another one than the last is dropped; what was asked for is given back.
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

from xmp._payload import Image, load_image, map_file, pack_image

from . import kernel
from .wire import Wire, prepared

__all__ = ["Channel"]

T = TypeVar("T")
_ENTERED = prepared(("entered",))
"""Pickling it in a fork would cost 40 pages."""


class Channel:
    """See the module; satisfies ``_inside.Channel``."""

    def __init__(self, wire: Wire, local_rank: int = 0) -> None:
        self._wire = wire
        self._lock = threading.Lock()
        """Held from a question to its answer."""
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._given: dict[str, threading.Event] = {}
        self._mates: tuple[int, ...] = ()
        self.local_rank = local_rank
        self._steps = 0
        self._flag: memoryview | None = None
        self._agreed = 0

    def split(self, local_ranks: Sequence[int]) -> list[Channel]:
        """A channel for each replica of this process; all talk through the one connection."""
        channels = []
        for local_rank in local_ranks:
            channel = copy.copy(self)
            channel.local_rank = local_rank
            channel._mates = tuple(each for each in local_ranks if each != local_rank)
            channels.append(channel)
        return channels

    def receive(self) -> tuple[Any, list[int]]:
        """The next message, with its descriptors."""
        return self._wire.recv()

    def tell(self, name: str, *rest: Any, descriptors: list[int] | tuple[int, ...] = ()) -> None:
        """Tell the supervisor something."""
        with self._sending:
            self._wire.send((name, *rest), descriptors)

    def _ask(self, name: str, *rest: Any) -> tuple[list[Any], list[int]]:
        """The answer to a question, with its descriptors."""
        with self._lock:
            number = next(self._numbers)
            self.tell(name, number, *rest)
            while True:
                (answered, *answer), descriptors = self.receive()
                if answered == number:
                    return answer, descriptors
                for descriptor in descriptors:
                    os.close(descriptor)

    def tell_entered(self) -> None:
        """Tell that the user's function begins."""
        self._wire.send_prepared(_ENTERED)

    def preempted(self) -> bool:
        """Whether all have agreed to end at this call; while they do, the supervisor is asked."""
        self._steps += 1
        if self._flag is not None and not self._flag[0]:
            return False
        if os.getpid() != os.getpgrp():
            return False  # a child of the replica, whose connection this is not
        if not self._agreed:
            wants_flag = self._flag is None
            answer, descriptors = self._ask("step", self.local_rank, self._steps, wants_flag)
            (self._agreed,) = answer
            if descriptors:
                self._flag = map_file(descriptors[0], 1).cast("B")
                os.close(descriptors[0])
        return 0 < self._agreed <= self._steps

    def tell_last_step(self) -> None:
        """Tell that this replica asks no more; where it is a process, its end tells that."""
        if self._steps:
            self.tell("last_step", self.local_rank)

    def tell_phase(self, name: str) -> None:
        """Tell what begins now, before the function does."""
        self.tell("phase", name, time.monotonic_ns())

    def share(self, key: str, make: Callable[[], T], owner: int | None = None) -> T:
        """The value that one local replica makes, for all; its exception, if it raises."""
        if owner in self._mates:
            # Whoever waits for an answer has the connection: the mate could no longer ask.
            self._given.setdefault(key, threading.Event()).wait()
        try:
            return self._share(key, make, owner is None or owner == self.local_rank)
        except BaseException:
            self.tell("unshare", key, self.local_rank)  # if it was to make it, others may
            raise

    def _share(self, key: str, make: Callable[[], T], may_make: bool) -> T:
        answer, descriptors = self._ask("share", key, self.local_rank, may_make)
        if answer[0] == "value":
            _, good, data, size = answer
            image = Image(data, size, descriptors[0] if descriptors else -1)
            value = load_image(image)
            image.close()
            if good:
                return value  # type: ignore[no-any-return]
            raise value
        try:
            value = make()
        except (Exception, SystemExit) as error:  # the others must not wait for who has left
            self._give(key, False, error)
            raise
        self._give(key, True, value)
        return value

    def _give(self, key: str, good: bool, value: Any) -> None:
        try:
            image = pack_image(value, kernel.memory_file)
        except Exception as error:
            good = False
            image = pack_image(
                RuntimeError(f"{key}: {value!r} cannot be sent to the other replicas: {error}"),
                kernel.memory_file,
            )
        descriptors = [image.descriptor] if image.data is None else []
        self.tell("shared", key, good, image.data, image.size, descriptors=descriptors)
        image.close()
        self._given.setdefault(key, threading.Event()).set()

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Hold the turn: at most one local replica at a time is inside."""
        with self._turns.setdefault(key, threading.Lock()):
            try:
                self._ask("lock", key)
                yield
            finally:
                try:
                    self.tell("unlock", key)
                except BaseException:
                    self.tell("unlock", key)  # interrupted: nobody minds to be told twice
                    raise
