"""The end of a connection whose other end is not trusted: the supervisor's, towards a replica.

Whatever arrives there, this process neither waits for more of it, nor runs it, nor reads a file
that came with it. Forks of the replica have inherited the replica's end.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from .catalog import Message
from .connection import CREDENTIALS_ROOM, KIND, Closed, Connection, Sender
from .packets import APART, WHOLE, Assembly, close_all
from .plain_format import Malformed, decoded

__all__ = ["MOST_BYTES", "Arrived", "UntrustedConnection"]

MOST_BYTES = 64 * 1024 * 1024
"""The longest message. Results and shared values of this size travel in files beside theirs."""
_MOST_WAITING = 64
"""Packets behind a full socket: a replica asks one question and reads the answer."""
_NO_CONNECTION = "its descriptor is no end of a connection"
_ROOM = CREDENTIALS_ROOM + socket.CMSG_SPACE(4)
"""For one descriptor. The kernel closes those that find no room."""


class Arrived(NamedTuple):
    """A message, its descriptors, which are the receiver's from now on, and its sender."""

    message: Message
    descriptors: list[int]
    sender: int
    """Its pid; the owner's where the kernel does not say."""
    by_child: bool
    """Whether a child of the owner has sent it, as the same user."""


class UntrustedConnection(Connection):
    """Takes messages of its ``owner`` and, if they fit into one packet, of the owner's children."""

    def __init__(self, descriptor: int, opens_pickles: bool = False) -> None:
        assert not opens_pickles
        super().__init__(descriptor, opens_pickles)
        self._assembly = Assembly(MOST_BYTES)
        self.owner = 0
        """The pid of the process for which the other end was made; 0: not known."""

    @classmethod
    def given(cls, descriptor: int, owner: int) -> UntrustedConnection:
        """An end that came beside a message; Malformed if it is something else."""
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
        """What is there now; None if that is no whole message, or not for this process.

        Raises Closed, and Malformed if the owner itself has sent what no replica sends.
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
                return None  # its parent has not sent it, and the launch does not depend on it
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
