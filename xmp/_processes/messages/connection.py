"""Messages between processes of a launch, with descriptors, over a local socket.

Both ends are inherited by processes of xmp and have no name, so only a fork that the user's code
makes can reach them. Packets of a fork that has become another user are ignored: the kernel tells
the sender of each packet (SO_PASSCRED, unix(7)).

Most messages are one packet. A local socket of kind SOCK_SEQPACKET carries a packet whole or not at
all, up to the size of its send buffer, and at most 253 descriptors with it (SCM_MAX_FD: unix(7)).
Large pickles travel in a memory file, so that sending one never waits for its receiver. A large
message with plain fields travels in several packets, because a receiver that does not trust the
sender (``untrusted``) reads no file that the sender has chosen.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from xmp._os import signals
from xmp._processes.system import linux
from xmp._processes.system.descriptors import Held, close_all, move_above

from .catalog import Message
from .plain_format import PICKLED, Malformed, decoded, encoded

__all__ = [
    "APART", "CREDENTIALS_ROOM", "KIND", "PIECE", "WHOLE", "Assembly", "Closed", "Connection",
    "Sender", "pair", "prepared",
]  # fmt: skip

DESCRIPTORS = 250
PIECE = 96 * 1024
WHOLE = b"."
APART = b"!"
"""A whole message that may come between the packets of another."""
_FIRST, _MORE, _LAST = b"(", b"+", b")"
_TOTAL = struct.Struct("<Q")
M = TypeVar("M", bound=Message)
_ROOM = 128 * 1024
_CREDENTIALS = struct.Struct("iII")
CREDENTIALS_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size)
_SPILLED = 255
"""The first byte of a message whose pickle is in its first descriptor, a memory file."""
# macOS has no SOCK_SEQPACKET for local sockets; its datagrams keep boundaries too.
KIND = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM


def in_packets(data: bytes, descriptors: list[int]) -> Iterator[tuple[bytes, list[int]]]:
    """Yield a message's packets, each with its descriptors; the first of several has the length."""
    if len(data) <= PIECE and len(descriptors) <= DESCRIPTORS:
        yield WHOLE + data, descriptors
        return
    count = max(-(-len(data) // PIECE), -(-len(descriptors) // DESCRIPTORS), 2)
    for index in range(count):
        mark = _FIRST + _TOTAL.pack(len(data)) if index == 0 else _MORE
        piece = data[index * PIECE : (index + 1) * PIECE]
        beside = descriptors[index * DESCRIPTORS : (index + 1) * DESCRIPTORS]
        yield (_LAST if index == count - 1 else mark) + piece, beside


class Assembly:
    """The part that has arrived of the message being received on one connection."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        """The most bytes of a message, if its sender is not trusted; None: no limit."""
        self._total = -1
        """The length of the whole message; -1: none is arriving."""
        self._data = bytearray()
        self._descriptors: list[int] = []

    def add(self, packet: bytes, descriptors: list[int]) -> tuple[bytes, list[int]] | None:
        """Take one packet over. Return the message if it is complete.

        A sender that was interrupted may never send the rest of a message, or may leave a packet
        out: a message that is shorter than announced is dropped.
        """
        mark, data = packet[:1], packet[1:]
        if mark == APART:
            return data, descriptors
        if mark in (WHOLE, _FIRST):
            self.drop()
        if mark == WHOLE:
            return data, descriptors
        if mark == _FIRST:
            if len(data) < _TOTAL.size:
                raise Malformed("its length is missing")
            (self._total,), data = _TOTAL.unpack_from(data), data[_TOTAL.size :]
        elif mark not in (_MORE, _LAST):
            raise Malformed("a packet of it has no mark")
        if self._total < 0:
            close_all(descriptors)
            return None
        return self._joined(data, descriptors, mark == _LAST)

    def _joined(
        self, data: bytes, descriptors: list[int], last: bool
    ) -> tuple[bytes, list[int]] | None:
        if self._most is not None and self._total > self._most:
            raise Malformed(f"it would have {self._total} bytes; {self._most} are allowed")
        if len(self._data) + len(data) > self._total:
            raise Malformed(f"it is longer than the {self._total} bytes that it announced")
        if self._most is not None and len(self._descriptors) + len(descriptors) > 1:
            raise Malformed("it has more than one descriptor")
        self._data += data
        self._descriptors += descriptors
        if not last:
            return None
        whole = bytes(self._data), self._descriptors
        complete, self._descriptors = len(self._data) == self._total, []
        self.drop()
        if complete:
            return whole
        close_all(whole[1])
        return None

    def drop(self) -> None:
        """Drop the part that has arrived of an incomplete message."""
        close_all(self._descriptors)
        self._total, self._data, self._descriptors = -1, bytearray(), []


class Closed(EOFError):
    """The other end is closed."""


class Sender(NamedTuple):
    """The sender of a packet, as the kernel reports it."""

    pid: int
    user: int
    group: int


def pair() -> tuple[Connection, Connection]:
    left, right = socket.socketpair(socket.AF_UNIX, KIND)
    return Connection(left.detach()), Connection(right.detach())


def prepared(message: Message) -> bytes:
    """Return a small message as bytes, ready for ``Connection.send_prepared``."""
    return WHOLE + encoded(message)


class Connection:
    """One end of a connection, which sends and receives messages with descriptors."""

    opens_pickles = True
    """Whether this process trusts the one at the other end: its parent, or its launcher."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._socket = socket.socket(socket.AF_UNIX, KIND, fileno=descriptor)
        self._held: Held | None = None
        self.waiting: deque[tuple[bytes, list[int]]] = deque()
        """Packets, with their descriptors, that were posted and are not sent yet."""
        self._assembly = Assembly()
        if linux.names_senders():
            with contextlib.suppress(PermissionError):  # in a sandbox: no sender is known then
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def moved(self, base: int) -> Connection:
        """Return the same end under a descriptor number of at least ``base``."""
        return type(self)(move_above(self.detach(), base))

    @property
    def end(self) -> socket.socket:
        """This end, for code that itself sends sockets to other processes."""
        return self._socket

    def detach(self) -> int:
        """Give the descriptor to the caller; this object must not be used afterwards."""
        return self._socket.detach()

    def hold(self) -> Connection:
        """Expect that the program may close this end: it is Closed then; see ``Held``."""
        self._held = Held(self.descriptor)
        return self

    @property
    def is_ours(self) -> bool:
        """Whether this end still exists: the program has not closed it."""
        return self._held is None or self._held.is_ours

    def fileno(self) -> int:
        return self.descriptor

    def close(self) -> None:
        """Close this end; messages that were not sent are dropped."""
        if self.is_ours:
            self._socket.close()
        else:
            self._socket.detach()
        for _, owned in self.waiting:
            close_all(owned)
        self.waiting.clear()
        self._assembly.drop()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send and wait until the kernel has taken all of it. Raises Closed if the other end is."""
        self.post(message, descriptors)
        while not self.flush():
            linux.ready(self.descriptor, select.POLLOUT, None)
            signals.deliver()  # if a handler raises, the rest is sent before the next message

    def send_prepared(self, data: bytes) -> None:
        """Send the bytes that ``prepared`` made; only while no posted message waits."""
        self._socket.send(data)

    def send_apart(self, message: Message, descriptors: list[int] | tuple[int, ...] = ()) -> None:
        """Send a small message at once, delayed by no other thread and no half-sent message.

        A signal handler may call this wherever it has interrupted its thread.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        data = APART + encoded(message)
        self._refuse_closed()
        while True:
            try:
                self._socket.sendmsg([data], rights if descriptors else [], socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                linux.ready(self.descriptor, select.POLLOUT, None)
            except OSError as error:
                raise Closed(str(error)) from error

    def post(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Queue a message; the descriptors are duplicated, the caller keeps its own."""
        self.post_encoded(encoded(message), descriptors)

    def post_encoded(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Queue a message that is encoded already, since it goes to several receivers."""
        owned = [os.dup(descriptor) for descriptor in descriptors]
        if len(data) > PIECE and data[0] == PICKLED:
            data, owned = bytes([_SPILLED]), [_spill(data), *owned]
        self.waiting.extend(in_packets(data, owned))

    def flush(self) -> bool:
        """Send what can be sent without waiting. Return whether nothing is left.

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
                self._refuse_closed()
                self._socket.sendmsg([data], rights if owned else [], socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                self.waiting.appendleft((data, owned))
                return False
            except (OSError, Closed) as error:
                close_all(owned)
                raise Closed(str(error)) from error
            close_all(owned)

    def recv(self, timeout: float | None = None) -> tuple[Message, list[int]]:
        """Return the next message and its descriptors, which the caller now owns.

        Raises Closed at the end of the connection and TimeoutError after ``timeout`` seconds.
        """
        while True:
            if not self.readable(timeout):
                raise TimeoutError
            message = self._recv_part()
            if message is not None:
                return message

    def expect(self, kind: type[M], timeout: float | None = None) -> tuple[M, list[int]]:
        """Return the next message, or raise TypeError for another kind; otherwise as ``recv``."""
        message, descriptors = self.recv(timeout)
        if not isinstance(message, kind):
            raise TypeError(f"expected {kind.__name__}, received {type(message).__name__}")
        return message, descriptors

    def readable(self, timeout: float | None = 0) -> bool:
        """Return whether a message or the end comes within ``timeout`` seconds, at most 11 days."""
        return not self.is_ours or linux.ready(self.descriptor, select.POLLIN, timeout)

    def _recv_part(self) -> tuple[Message, list[int]] | None:
        room = CREDENTIALS_ROOM + socket.CMSG_SPACE(4 * DESCRIPTORS)
        packet, descriptors, sender, flags = self._packet(room)
        if sender is not None and not self._trusts(sender):
            close_all(descriptors)
            return None
        if flags & socket.MSG_CTRUNC:
            close_all(descriptors)
            raise OSError("descriptors were lost: too many open files (raise ulimit -n)")
        if not packet:
            raise Closed("end of connection")
        whole = self._assembly.add(packet, descriptors)
        if whole is None:
            return None
        data, descriptors = whole
        if data[:1] == bytes([_SPILLED]) and self.opens_pickles:
            with open(descriptors.pop(0), "rb") as file:
                file.seek(0)
                data = file.read()
        try:
            return decoded(data, self.opens_pickles), descriptors
        except Malformed:
            close_all(descriptors)
            raise

    def _refuse_closed(self) -> None:
        if not self.is_ours:
            raise Closed("this process has closed its end, as os.closerange does")

    def _trusts(self, sender: Sender) -> bool:
        """Return whether the sender is of this user, or of the user that made the connection.

        A launcher, or a script that is imported, may have become another user since; the process
        that made the connection is trusted anyway.
        """
        if sender.user == os.getuid():
            return True
        made = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        maker = Sender(*_CREDENTIALS.unpack(made))
        return sender.user == maker.user or sender.pid == maker.pid

    def _packet(self, room: int, flags: int = 0) -> tuple[bytes, list[int], Sender | None, int]:
        """Receive a packet. Return its bytes, descriptors, sender if known, and the kernel's flags.

        No bytes and no sender mean the end of the connection.
        """
        flags |= getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        self._refuse_closed()
        try:
            try:
                data, ancillary, found, _ = self._socket.recvmsg(_ROOM, room, flags)
            except ConnectionResetError:
                # The other end closed with messages unread. The kernel reports that once, before
                # the messages that the other end had sent.
                data, ancillary, found, _ = self._socket.recvmsg(_ROOM, room, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise Closed(str(error)) from error
        descriptors, sender = array.array("i"), None
        for _, kind, content in ancillary:
            if kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % 4])
            elif len(content) == _CREDENTIALS.size:
                sender = Sender(*_CREDENTIALS.unpack(content))
        # gVisor gives process 0 as the sender where nothing was sent.
        known = sender if data or (sender is not None and sender.pid) else None
        return data, list(descriptors), known, found


def _spill(data: bytes) -> int:
    descriptor = linux.memory_file("xmp-message")
    with open(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor
