"""Messages between processes of a launch, with descriptors, over a local socket.

Both ends are inherited by processes of xmp and have no name, so no other process can reach them
and pickle is safe. The socket is SOCK_SEQPACKET: a message arrives whole or not at all. Two limits
of the kernel are hidden: 253 descriptors a message (SCM_MAX_FD; fewer arrive silently when the
receiver's table is full), and the size of the send buffer (larger messages travel in a memory
file).
"""

from __future__ import annotations

import array
import os
import pickle
import select
import socket
import sys
from collections import deque
from typing import Any, TypeVar

from xmp import _signals
from xmp._processes.system import linux
from xmp._processes.system.descriptors import move_above

from .catalog import CATALOG, Message

__all__ = ["Closed", "Connection", "pair", "prepared"]

M = TypeVar("M", bound=Message)
_DESCRIPTORS_A_MESSAGE = 250
_INLINE = 96 * 1024
_ROOM = 128 * 1024
_MORE, _LAST, _SPILLED = b"+", b".", b"s"
# macOS has no SOCK_SEQPACKET for local sockets; its datagrams keep boundaries too.
_KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM


class Closed(EOFError):
    """The other end is closed."""


def pair() -> tuple[Connection, Connection]:
    """Two connected ends."""
    left, right = socket.socketpair(socket.AF_UNIX, _KIND)
    return Connection(left.detach()), Connection(right.detach())


def prepared(message: Message) -> bytes:
    """A small message, ready for ``Connection.send_prepared``."""
    return _LAST + _encoded(message)


def _encoded(message: Message) -> bytes:
    # As a plain tuple: to pickle the class by its name would touch pages in a fork.
    return pickle.dumps((type(message).__name__, *message), protocol=5)


def _decoded(name: str, *fields: Any) -> Message:
    message: Message = CATALOG[name]._make(fields)
    return message


class Connection:
    """One end of a connection; sends and receives messages with descriptors."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._socket = socket.socket(socket.AF_UNIX, _KIND, fileno=descriptor)
        self.waiting: deque[tuple[bytes, list[int]]] = deque()
        """What was posted and has not been sent yet."""
        self._collected: list[int] = []

    def moved(self, base: int) -> Connection:
        """The same end under a descriptor number that is at least ``base``."""
        return Connection(move_above(self.detach(), base))

    def detach(self) -> int:
        """Give the descriptor to the caller; this object must not be used any more."""
        return self._socket.detach()

    def fileno(self) -> int:
        return self.descriptor

    def close(self) -> None:
        """Close this end; messages that were not sent are dropped."""
        self._socket.close()
        for _, owned in self.waiting:
            _close(owned)
        self.waiting.clear()

    def send(self, message: Message, descriptors: list[int] | tuple[int, ...] = ()) -> None:
        """Send and wait until the kernel has taken all of it; Closed if the other end is closed."""
        self.post(message, descriptors)
        while not self.flush():
            linux.ready(self.descriptor, select.POLLOUT, None)
            _signals.deliver()  # what is left goes out before the next message

    def send_prepared(self, data: bytes) -> None:
        """Send what ``prepared`` made, while no posted message waits."""
        self._socket.send(data)

    def post(self, message: Message, descriptors: list[int] | tuple[int, ...] = ()) -> None:
        """Queue a message; the descriptors are duplicated, the caller keeps its own."""
        data = _encoded(message)
        owned = [os.dup(descriptor) for descriptor in descriptors]
        mark = _LAST
        if len(data) > _INLINE:
            mark, owned, data = _SPILLED, [_spill(data), *owned], b""
        while len(owned) > _DESCRIPTORS_A_MESSAGE:
            head, owned = owned[:_DESCRIPTORS_A_MESSAGE], owned[_DESCRIPTORS_A_MESSAGE:]
            self.waiting.append((_MORE, head))
        self.waiting.append((mark + data, owned))

    def flush(self) -> bool:
        """Send what can be sent without waiting; True when nothing is left.

        A signal handler that interrupts this may send too: each call removes a message from the
        queue before it sends it.
        """
        while True:
            try:
                data, owned = self.waiting.popleft()
            except IndexError:
                return True
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", owned))]
            try:
                self._socket.sendmsg([data], rights if owned else [], socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                self.waiting.appendleft((data, owned))
                return False
            except OSError as error:
                _close(owned)
                raise Closed(str(error)) from error
            _close(owned)

    def recv(self, timeout: float | None = None) -> tuple[Message, list[int]]:
        """The next message and its descriptors, which are the caller's from now on.

        Raises Closed at the end of the connection and TimeoutError after ``timeout`` seconds.
        """
        while True:
            if not self.readable(timeout):
                raise TimeoutError
            message = self._recv_part()
            if message is not None:
                return message

    def expect(self, kind: type[M], timeout: float | None = None) -> tuple[M, list[int]]:
        """The next message, which must be of this kind; raises as ``recv`` does, and TypeError."""
        message, descriptors = self.recv(timeout)
        if not isinstance(message, kind):
            raise TypeError(f"expected {kind.__name__}, received {type(message).__name__}")
        return message, descriptors

    def readable(self, timeout: float | None = 0) -> bool:
        """Whether a message or the end is there within ``timeout`` seconds (at most 11 days)."""
        return linux.ready(self.descriptor, select.POLLIN, timeout)

    def _recv_part(self) -> tuple[Message, list[int]] | None:
        room = socket.CMSG_SPACE(4 * _DESCRIPTORS_A_MESSAGE)
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            try:
                data, ancillary, message_flags, _ = self._socket.recvmsg(_ROOM, room, flags)
            except ConnectionResetError:
                # The other end closed with messages unread. The kernel reports that once, before
                # the messages that the other end had sent.
                data, ancillary, message_flags, _ = self._socket.recvmsg(_ROOM, room, flags)
        except OSError as error:
            raise Closed(str(error)) from error
        descriptors: list[int] = []
        for _, _, rights in ancillary:
            received = array.array("i")
            received.frombytes(rights[: len(rights) - len(rights) % received.itemsize])
            descriptors.extend(received)
        if message_flags & socket.MSG_CTRUNC:
            _close(descriptors)
            raise OSError("descriptors were lost: too many open files (raise ulimit -n)")
        if not data:
            raise Closed("end of connection")
        self._collected += descriptors
        if data[:1] == _MORE:
            return None
        descriptors, self._collected = self._collected, []
        if data[:1] == _SPILLED:
            with open(descriptors.pop(0), "rb") as file:
                file.seek(0)
                return _decoded(*pickle.load(file)), descriptors
        return _decoded(*pickle.loads(data[1:])), descriptors


def _spill(data: bytes) -> int:
    descriptor = linux.memory_file("xmp-message")
    with open(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
