"""The end of a connection whose other end is not trusted: the supervisor's, towards a replica.

Whatever arrives there, this process does not wait for the rest of it, run it, or read a file that
came with it. Forks of the replica have inherited the replica's end.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from xmp._processes.system.descriptors import close_all

from .catalog import Message
from .connection import APART, CREDENTIALS_ROOM, KIND, WHOLE, Assembly, Closed, Connection, Sender
from .plain_format import Malformed, decoded

__all__ = ["MOST_BYTES", "Arrived", "UntrustedConnection"]

MOST_BYTES = 64 * 1024 * 1024
"""The longest message in bytes. Results and shared values of this size travel in files with it."""
_MOST_WAITING = 64
"""The most packets that wait for a full socket: a replica asks a question and reads the answer."""
_NO_CONNECTION = "its descriptor is no end of a connection"
_ROOM = CREDENTIALS_ROOM + socket.CMSG_SPACE(4)
"""Room for one descriptor. The kernel closes descriptors for which there is no room."""


class Arrived(NamedTuple):
    """A message, its descriptors, which the receiver now owns, and its sender."""

    message: Message
    descriptors: list[int]
    sender: int
    """The sender's pid; the owner's if the kernel does not tell."""
    by_child: bool
    """Whether a child of the owner, running as the same user, has sent it."""


class UntrustedConnection(Connection):
    """The supervisor's end of a connection to a replica, the ``owner``, and to its children.

    Messages of children must fit into one packet.
    """

    opens_pickles = False

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._assembly = Assembly(MOST_BYTES)
        self.owner = 0
        """The pid of the process for which the other end was made; 0 if not known."""

    @classmethod
    def given(cls, descriptor: int, owner: int) -> UntrustedConnection:
        """Wrap an end that came with a message. Raises Malformed if it is something else."""
        try:
            given = socket.socket(socket.AF_UNIX, KIND, fileno=descriptor)
        except OSError:
            os.close(descriptor)
            raise Malformed(_NO_CONNECTION) from None
        domain = getattr(socket, "SO_DOMAIN", None)  # Linux
        family = given.getsockopt(socket.SOL_SOCKET, domain) if domain is not None else given.family
        if (family, given.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)) != (given.family, KIND):
            given.close()
            raise Malformed(_NO_CONNECTION)
        connection = cls(given.detach())
        connection.owner = owner
        return connection

    def take(self) -> Arrived | None:
        """Return the message that is there now; None if there is none, or if it is to be ignored.

        An incomplete message is kept; a malformed one of a child is ignored. Raises Closed at the
        end of the connection, and Malformed if the owner itself has sent what no replica sends.
        """
        if len(self.waiting) > _MOST_WAITING:
            raise Malformed("it does not read the answers to its questions")
        try:
            packet, descriptors, sender, flags = self._packet(_ROOM, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not packet and sender is None:
            raise Closed("end of connection")
        pid, user, _ = sender or Sender(self.owner, 0, 0)
        by_child = pid != self.owner
        try:
            if by_child and user != os.getuid():
                raise Malformed("it comes from another user")
            if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC) or len(descriptors) > 1:
                raise Malformed(_lost(flags, descriptors))
            return self._whole(packet, descriptors, pid, by_child)
        except Malformed:
            close_all(descriptors)
            if by_child:
                return None  # the launch does not depend on children
            raise

    def _whole(
        self, packet: bytes, descriptors: list[int], pid: int, by_child: bool
    ) -> Arrived | None:
        if by_child and packet[:1] not in (APART, WHOLE):
            raise Malformed("a child of a replica sends no message in parts")
        if by_child:
            data = packet[1:]
        else:
            whole = self._assembly.add(packet, descriptors)
            if whole is None:
                return None
            data, descriptors[:] = whole
        return Arrived(decoded(data, False), descriptors, pid, by_child)


def _lost(flags: int, descriptors: list[int]) -> str:
    if flags & socket.MSG_TRUNC:
        return "it is longer than a packet may be"
    if descriptors:
        return "it has more than one descriptor"
    return "it has more than one descriptor, or too many files are open (raise ulimit -n)"
