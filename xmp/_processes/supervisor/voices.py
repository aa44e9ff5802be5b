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

from .checks import check_question
from .replica_handle import ReplicaHandle

__all__ = ["Voice", "Voices"]

_MOST = 1000
"""Of one replica and its children together: each costs the supervisor a descriptor."""


@dataclass(eq=False)
class Voice:
    """One thread of a replica, or of a child of it, which waits for one answer at a time."""

    replica: ReplicaHandle
    local_rank: int
    connection: UntrustedConnection
    of_child: bool
    closed: bool = False

    def answer(self, message: Message, *descriptors: int) -> None:
        """Only post it: the supervisor's loop sends, and watches for room to write meanwhile."""
        if not self.closed:
            self.connection.post(message, descriptors)


class Voices:
    """Those of all replicas."""

    def __init__(
        self,
        loop: EventLoop,
        condemn: Callable[[ReplicaHandle, str], None],
        forget: Callable[[Voice], None],
    ) -> None:
        """``forget`` is called when a voice is closed, whatever it has asked for."""
        self.table = Handlers[[Voice, Arrived]]()
        """What each question does."""
        self._loop = loop
        self._condemn = condemn
        self._forget = forget
        self._voices: dict[Voice, None] = {}

    def open(self, message: OpenVoice, replica: ReplicaHandle, arrived: Arrived) -> None:
        """Listen to a voice from here on; one too many is closed at once."""
        (descriptor,) = arrived.descriptors
        if sum(voice.replica is replica for voice in self._voices) >= _MOST:
            os.close(descriptor)
            return
        connection = UntrustedConnection.given(descriptor, arrived.sender)
        voice = Voice(replica, message.local_rank, connection, arrived.by_child)
        self._voices[voice] = None
        self._loop.listen(descriptor, partial(self._hear, voice))

    def _hear(self, voice: Voice) -> None:
        try:
            arrived = voice.connection.take()
            if arrived is not None:
                check_question(arrived)
                self.table.handle(arrived.message, voice, arrived)
        except Closed:
            self.close(voice)
        except Malformed as why:
            self._end(voice, str(why))
        except OSError as error:  # no descriptor is left for what it asks for
            self._end(voice, f"it cannot be carried out: {error}")

    def _end(self, voice: Voice, why: str) -> None:
        """The launch depends on no child; a replica is killed before it sees its voice closed."""
        if not voice.of_child:
            self._condemn(voice.replica, why)
        self.close(voice)

    def waiting(self) -> Iterator[UntrustedConnection]:
        """The connections on which something is to be sent."""
        return (voice.connection for voice in [*self._voices] if voice.connection.waiting)

    def close(self, voice: Voice) -> None:
        """What it has asked for is not wanted any more."""
        if not voice.closed:
            voice.closed = True
            del self._voices[voice]
            self._loop.wake_for_write(voice.connection.fileno(), False)
            self._loop.forget(voice.connection.fileno())
            self._forget(voice)
            voice.connection.close()

    def forget(self, replica: ReplicaHandle) -> None:
        """A replica has ended: its children have no voice any more."""
        for voice in [each for each in self._voices if each.replica is replica]:
            self.close(voice)
