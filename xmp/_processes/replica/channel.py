"""The channel of a replica, or of a child of it, to the supervisor: reports and questions.

Reports go over the replica's own connection, and the supervisor accepts them from the replica
alone. The supervisor keeps the values that local replicas share (``share``) and the turns
(``turn``); both survive the death of any replica and child.

Questions go over voices, one connection for each open question. There are no locks: a thread takes
a voice that no other has, or opens one. So a signal handler may ask while the code that it has
interrupted waits for an answer, and so may another thread. A voice on which a question was
interrupted is closed, which withdraws the question.

A child of a replica opens voices of its own. At a fork, the parent's voices are closed in the
child; otherwise the supervisor would not see that the parent has closed one.
"""

from __future__ import annotations

import copy
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from xmp import _inside
from xmp._os import signals
from xmp._payload import load_image, map_file
from xmp._processes.messages import replica as messages
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed, Connection, pair, prepared
from xmp._processes.messages.outcomes import packed_outcome, received_image
from xmp._processes.messages.replica import OpenVoice

__all__ = ["SupervisorChannel", "Voice", "Voices", "in_child"]

T = TypeVar("T")
_ENTERED = prepared(messages.FunctionEntered())
"""Pickling it in a fork would cost 40 pages."""
_BETWEEN_BEATS = 0.25  # seconds
_LONGEST_WORDS = 4096


class Voice:
    """A connection for one question at a time, and its answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        _open.add(self)

    def ask(self, question: Message) -> tuple[Any, list[int]]:
        """Ask and wait. Return the answer and its descriptors, which the caller then owns."""
        self._connection.send(question)
        return self._connection.recv()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self._connection.send(message, list(descriptors))

    @property
    def is_closed(self) -> bool:
        return self._connection.end.fileno() < 0

    def close(self) -> None:
        self._connection.close()


_open: weakref.WeakSet[Voice] = weakref.WeakSet()


class Voices:
    """The voices of one replica in this process, which is the replica or a child of it."""

    def __init__(self, door: Connection) -> None:
        self._door = door
        """The replica's connection to the supervisor, which its children have inherited."""
        self._idle: list[Voice] = []
        self._pid = os.getpid()

    @contextmanager
    def one(self, local_rank: int) -> Iterator[Voice]:
        """Lend a voice to the caller alone.

        Raises RuntimeError if the supervisor does not hear this process any more.
        """
        if self._pid != os.getpid():
            self._pid, self._idle = os.getpid(), []
        voice: Voice | None = None
        try:
            while self._idle and (voice is None or voice.is_closed):  # interrupted after its use
                voice = self._idle.pop()
            if voice is None or voice.is_closed:
                voice = self._opened(local_rank)
            yield voice
        except Closed as error:
            raise RuntimeError(
                f"{_inside.whose_child() or f'process {os.getpid()}'} cannot ask the supervisor of "
                "its launch (any more): the replica has ended, this process is of another user by "
                "now, more than 1,000 threads and children of the replica ask at once, or too many "
                "files are open (raise ulimit -n)"
            ) from error
        else:
            self._idle.append(voice)
            voice = None
        finally:
            if voice is not None:
                voice.close()

    def _opened(self, local_rank: int) -> Voice:
        ours, theirs = pair()
        ours.opens_pickles = False  # the answers are plain
        self._door.send_apart(OpenVoice(local_rank), [theirs.fileno()])
        theirs.close()
        return Voice(ours)


def _forget_the_parents() -> None:
    for voice in list(_open):
        voice.close()
    _open.clear()


os.register_at_fork(after_in_child=_forget_the_parents)


class SupervisorChannel:
    """The channel of one replica in this process; implements ``_inside.Channel``."""

    def __init__(self, connection: Connection, local_rank: int = 0) -> None:
        self._connection = connection
        connection.opens_pickles = False
        self._sending = threading.Lock()
        self._voices = Voices(connection)
        self._turns: set[tuple[int, int, str]] = set()
        """Process, thread and key of each that has a turn or waits for one."""
        self.local_rank = local_rank
        self._steps = 0
        self._votes = False
        """Whether the supervisor knows of a call that counts: another thread may have asked first,
        and a vote without this replica could find a step that it has passed."""
        self._flag: memoryview | None = None
        self._agreed = 0
        self._next_beat = 0.0

    @property
    def door(self) -> socket.socket:
        """The socket that a child needs to ask, which ``multiprocessing`` can send to children."""
        return self._connection.end

    def close(self) -> None:
        """Close the supervisor's copy, which it has prepared for the replicas."""
        self._connection.close()

    def split(self, local_ranks: Sequence[int]) -> list[SupervisorChannel]:
        """Return a channel for each replica of this process; all use the one connection."""
        channels = []
        for local_rank in local_ranks:
            channel = copy.copy(self)
            channel.local_rank = local_rank
            channel._voices = Voices(self._connection)
            channels.append(channel)
        return channels

    def send(self, message: Message, descriptors: list[int] | tuple[int, ...] = ()) -> None:
        with self._sending:
            self._connection.send(message, descriptors)

    def send_apart(self, message: Message, descriptors: Sequence[int]) -> None:
        """Send a small message at once; any thread, signal handler or child may call this."""
        self._connection.send_apart(message, list(descriptors))

    def receive(self) -> tuple[Message, list[int]]:
        """Wait for the next call of the gang, or for what ends it. Raise Closed at the end.

        What a handler of the program raises meanwhile is raised here.
        """
        while True:
            try:
                return self._connection.recv()
            except TimeoutError:  # a signal has come
                signals.deliver()

    def begin_call(self) -> None:
        """Begin to count calls of ``preempted()`` from 0 again."""
        self._steps, self._votes, self._agreed, self._flag = 0, False, 0, None

    def report_entered(self) -> None:
        self._connection.send_prepared(_ENTERED)

    def report_left(self) -> None:
        """Report that the function of this thread replica has returned; other replicas need not."""
        self.send(messages.FunctionLeft(self.local_rank))

    def report_phase(self, name: str) -> None:
        """Report the beginning of a phase before the function."""
        self.send(messages.PhaseBegun(name, time.monotonic_ns()))

    def preempted(self, counts: bool) -> bool:
        """Return whether all replicas end at this call; ask the supervisor while they agree on it.

        A call that does not count returns what the last one that counted returned.
        """
        if counts:
            self._steps += 1
        if self._flag is not None and not self._flag[0] and (self._votes or not counts):
            return False
        if not counts:
            if self._flag is None:
                self._ask_preempted(0)
            return bool(self._flag and self._flag[1 + self.local_rank])
        if not self._agreed or self._steps == self._agreed:  # == sets the flag for those that look
            self._agreed, self._votes = self._ask_preempted(self._steps), True
        return 0 < self._agreed <= self._steps

    def _ask_preempted(self, calls: int) -> int:
        with self._voices.one(self.local_rank) as voice:
            answer, descriptors = voice.ask(messages.AskPreempted(calls, self._flag is None))
            if descriptors:
                self._flag = map_file(descriptors[0], os.fstat(descriptors[0]).st_size).cast("B")
                os.close(descriptors[0])
        return int(answer.step)

    def share(
        self, key: str, make: Callable[[], T], owner: int | None = None, kept: bool = False
    ) -> T:
        """Return the value that one local replica makes for all, or raise what making it raised."""
        question = messages.WantValue(key, -1 if owner is None else owner, kept)
        if _inside.whose_child():
            # A child's call cannot be matched with the calls of others by their order.
            question = question._replace(owner=-1, kept=True)
        with self._voices.one(self.local_rank) as voice:
            answer, descriptors = voice.ask(question)
            if isinstance(answer, messages.MakeValue):
                good, value = _outcome(make)
                _give(voice, key, good, value)
            elif isinstance(answer, messages.NoValue):
                good, value = False, RuntimeError(_will_not_come(answer.owner))
            else:
                good, value = answer.good, _received(answer, descriptors)
        if good:
            return value  # type: ignore[no-any-return]
        raise value

    def meet(self, key: str, local_ranks: Sequence[int], seconds: float) -> str:
        """Wait until these local replicas have called this. Return who has not come in time."""
        question = messages.Meet(key, [*local_ranks], int(seconds * 1e9))
        with self._voices.one(self.local_rank) as voice:
            answer, _ = voice.ask(question)
        return str(answer.words)

    def call_off(self, key: str, words: str) -> None:
        """End the meeting of others, which this replica refuses."""
        with self._voices.one(self.local_rank) as voice:
            voice.send(messages.CallOff(key, words[:_LONGEST_WORDS]))

    def show_in_cell(
        self, kind: str, display_id: str, types: list[str], texts: list[str], metadata: str
    ) -> None:
        """Display this in the notebook's cell; return when the supervisor has passed it on."""
        with self._voices.one(self.local_rank) as voice:
            voice.ask(messages.ShowInCell(kind, display_id, types, texts, metadata))

    def beat(self) -> None:
        """Report progress of the replica, from a child that does not share its memory."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + _BETWEEN_BEATS
            with self._voices.one(self.local_rank) as voice:
                voice.send(messages.Beat())

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        """Hold the turn: at most one thread of all local replicas and their children is inside.

        Raises RuntimeError if this thread has the turn or waits for it: it would wait for itself.
        """
        me = (os.getpid(), threading.get_ident(), key)
        if me in self._turns:
            raise RuntimeError(
                "MpSerialExecutor.run, or MpModelWrapper.to, was called while the same thread had "
                "the turn of the same object: within the function that it runs, or by a signal "
                "handler. It would wait for itself for ever: call it when the turn is over"
            )
        self._turns.add(me)
        try:
            with self._voices.one(self.local_rank) as voice:
                voice.ask(messages.TakeTurn(key))
                yield  # an exception closes the voice, which ends the turn
                voice.send(messages.ReturnTurn())
        finally:
            self._turns.discard(me)


def in_child(door: socket.socket, local_rank: int) -> SupervisorChannel:
    """Return the channel of a child that has inherited nothing but the replica's ``door``.

    A child that has closed all descriptors gets one too, and knows who it is; it cannot ask.
    """
    from . import breakpoints

    breakpoints.install()
    try:
        os.set_inheritable(door.fileno(), False)  # no program that it starts inherits it
        own = os.dup(door.fileno())
    except OSError:
        own = pair()[0].detach()
    return SupervisorChannel(Connection(own), local_rank)


def _outcome(make: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, make()
    except BaseException as error:  # of any kind: the others must not wait for ever
        return False, error


def _give(voice: Voice, key: str, good: bool, value: Any) -> None:
    try:
        image = packed_outcome(value)
    except Exception as error:
        words = f"{key}: {value!r} cannot be sent to the other replicas: {error}"
        good, image = False, packed_outcome(RuntimeError(words))
    descriptors = [image.descriptor] if image.data is None else []
    voice.send(messages.GiveValue(good, image.data, image.size), descriptors)
    image.close()


def _received(answer: messages.SharedValue, descriptors: Sequence[int]) -> Any:
    image = received_image(answer.data, answer.size, descriptors)
    try:
        return load_image(image)
    finally:
        image.close()


def _will_not_come(owner: int) -> str:
    return (
        f"xmp.once_per_host: local rank {owner}, which runs the function for all of this host, has "
        "left its own function without this call. Every replica of a host must make the same calls "
        "of once_per_host in the same order"
    )
