"""The connections on which the threads and children of replicas ask the supervisor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from xmp._processes.messages.catalog import Handlers, Message
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.plain_format import Malformed
from xmp._processes.messages.replica import OpenVoice
from xmp._processes.messages.untrusted import Arrived, UntrustedConnection
from xmp._processes.output.event_loop import EventLoop

from .message_checks import check_question
from .replica_handle import ReplicaHandle

__all__ = ["HeardVoice", "HeardVoices"]

_MOST = 1000
"""The most voices of a replica and its children: each costs the supervisor a descriptor."""


@dataclass(eq=False)
class HeardVoice:
    """One thread of a replica, or of a child of it, which waits for one answer at a time."""

    replica: ReplicaHandle
    local_rank: int
    connection: UntrustedConnection
    of_child: bool
    closed: bool = False

    def answer(self, message: Message, *descriptors: int) -> None:
        """Post an answer: the supervisor's loop sends it when there is room."""
        if not self.closed:
            self.connection.post(message, descriptors)


class HeardVoices:
    """The voices of all replicas."""

    def __init__(
        self,
        loop: EventLoop,
        condemn: Callable[[ReplicaHandle, str], None],
        forget: Callable[[HeardVoice], None],
    ) -> None:
        """Call ``condemn`` for a replica with a wrong question, ``forget`` for a closed voice."""
        self.table = Handlers[[HeardVoice, Arrived]]()
        """The handler of each question."""
        self._loop = loop
        self._condemn = condemn
        self._forget = forget
        self._voices: dict[HeardVoice, None] = {}

    def open(self, message: OpenVoice, replica: ReplicaHandle, arrived: Arrived) -> None:
        """Listen to a voice from now on; close it at once if there are too many."""
        (descriptor,) = arrived.descriptors
        if sum(voice.replica is replica for voice in self._voices) >= _MOST:
            os.close(descriptor)
            return
        connection = UntrustedConnection.given(descriptor, arrived.sender)
        voice = HeardVoice(replica, message.local_rank, connection, arrived.by_child)
        self._voices[voice] = None
        self._loop.listen(descriptor, partial(self._hear, voice))

    def _hear(self, voice: HeardVoice) -> None:
        try:
            arrived = voice.connection.take()
            if arrived is not None:
                check_question(arrived)
                self.table.handle(arrived.message, voice, arrived)
        except Closed:
            self.close(voice)
        except Malformed as why:
            self._end(voice, str(why))
        except OSError as error:  # the request needs a descriptor, and none is left
            self._end(voice, f"it cannot be carried out: {error}")

    def _end(self, voice: HeardVoice, why: str) -> None:
        """Close a voice that cannot be served, and kill its replica first, unless a child has it.

        The launch depends on no child.
        """
        if not voice.of_child:
            self._condemn(voice.replica, why)
        self.close(voice)

    def waiting(self) -> Iterator[UntrustedConnection]:
        """Yield the connections on which something waits to be sent."""
        return (voice.connection for voice in [*self._voices] if voice.connection.waiting)

    def close(self, voice: HeardVoice) -> None:
        """Close a voice and withdraw its question."""
        if not voice.closed:
            voice.closed = True
            del self._voices[voice]
            self._loop.wake_for_write(voice.connection.fileno(), False)
            self._loop.forget(voice.connection.fileno())
            self._forget(voice)
            voice.connection.close()

    def forget(self, replica: ReplicaHandle) -> None:
        """Close all voices of a replica that has ended, also those of its children."""
        for voice in [each for each in self._voices if each.replica is replica]:
            self.close(voice)
