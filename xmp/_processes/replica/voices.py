"""Connections on which threads of this process ask the supervisor, one for each open question.

There are no locks: a thread takes a voice that no other has, or opens one. So a signal handler may
ask while the code that it has interrupted waits for an answer, and so may another thread. A voice
on which a question was interrupted is closed, which withdraws the question.

A child of a replica opens voices of its own. At a fork, the parent's voices are closed in the
child; otherwise the supervisor would not see that the parent has closed one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xmp import _inside
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed, Connection, pair
from xmp._processes.messages.replica import OpenVoice

__all__ = ["Voice", "Voices"]


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
