"""The loop of both processes on a stream: packets of a local socket become frames, and back.

A packet's descriptors become what the other side can have of them. A file is sent as its bytes, and
is a memory file there. A standard stream is a pipe there, and what is written to it comes back.

Order holds: what a host's replicas have written before a packet comes out before it. So where the
driver's stream takes no more, what was reported after it waits too, as with one host.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator

from xmp._payload import map_file
from xmp._processes.messages.connection import Closed
from xmp._processes.system import linux
from xmp._processes.system.descriptors import close_all

from .frames import (
    BEAT,
    OUTPUT,
    PACKET,
    PIECE,
    PIECE_SIZE,
    FrameReader,
    FrameWriter,
    StreamBroken,
)

__all__ = ["SILENCE", "Bridge"]

SILENCE = 12.0
"""Seconds without a byte after which the other end is given up: with beats every 3 s, and a look
every 1.5 s, a link that is cut without a word is noticed within 15 s, as between placed hosts."""
_BEAT_EVERY = 3.0
_ROOM, _FILES = 128 * 1024, 64
_MOST = 8 << 20
"""Bytes that wait for the stream; then agent and replicas wait, too."""
_PIPE = 1 << 20
"""The most that a pipe holds (pipe(7), pipe-max-size)."""
_FILE, _STREAM, _NULL = b"f", b"s", b"n"
_KIND = struct.Struct(">cQ")
_NUMBER = struct.Struct(">I")


class Bridge:
    """One local socket, and one stream."""

    def __init__(self, local: socket.socket, beat: Callable[[], bytes]) -> None:
        """``beat`` returns the body of the next beat."""
        self._beat = beat
        self._deliveries: deque[tuple[bytes, list[int]]] = deque()
        """Packets for the local socket, which is full."""
        self.join(local)
        self._incoming = _IncomingPacket()
        self._sources: dict[int, int] = {}
        """Pipes of this side, by descriptor: the numbers of the streams that they are."""
        self._sinks: dict[int, int] = {}
        """Streams that were given to this side, by number."""
        self._given = self._made = 0
        """How many streams this side, and the other one, has given."""
        self._blocked: tuple[int, memoryview] | None = None
        """The number of a stream that takes no more, and what is left for it."""
        self._handlers: dict[int, Callable[[memoryview], None]] = {
            PACKET: self._packet_begins, PIECE: lambda _: self._deliver_complete(),
            OUTPUT: self._output, BEAT: lambda _: None,
        }  # fmt: skip

    def join(self, local: socket.socket) -> None:
        """Carry between this local socket and the stream from now on."""
        local.setblocking(False)
        self.local = local
        self.local_over = False
        """Whether the process at the other end of the local socket has closed it."""

    def use(self, reader: FrameReader, writer: FrameWriter, source: int, sink: int) -> None:
        """Carry between the local socket and this stream, which has two descriptors."""
        self._reader, self.writer, self._source, self._sink = reader, writer, source, sink
        self._heard = self._beaten = time.monotonic()

    def on(self, kind: int, handler: Callable[[memoryview], None]) -> None:
        """Call ``handler`` with the body of each frame of this kind."""
        self._handlers[kind] = handler

    def room(self, size: int) -> memoryview:
        """Return where the next bytes of a file belong. Raise StreamBroken."""
        return self._incoming.room(size)

    # --- the loop ------------------------------------------------------------------------------

    def turn(self) -> None:
        """Wait for something to do, and do it. Raise Closed, StreamBroken, TimeoutError.

        TimeoutError: the other end has been silent for too long.
        """
        ready = self._ready()
        now = time.monotonic()
        if self._blocked is not None:
            self._heard = now  # nothing is read meanwhile
            self._write_blocked()
        elif self._source in ready or self._reader.early:
            self._heard = now
            self._take_frames()
        if self.local.fileno() in ready:
            self._flush_local()
            self._take_packet()
        for descriptor in [each for each in self._sources if each in ready]:
            self._read_source(descriptor)
        self._keep_up(now)
        self.writer.flush()

    def _take_frames(self) -> None:
        for kind, body in self._reader.frames():
            handler = self._handlers.get(kind)
            if handler is None:
                raise StreamBroken(f"a frame of kind {kind} in the wrong direction")
            try:
                handler(body)
            except (struct.error, IndexError):
                raise StreamBroken(f"a frame of kind {kind} that is cut off") from None
            if self._blocked is not None:
                return

    def _ready(self) -> set[int]:
        """Wait a moment; return the descriptors that are ready, the stream's if it can be read."""
        poller, both = select.poll(), self._source == self._sink
        of_stream = 0 if self.writer.empty else select.POLLOUT
        if self._blocked is None:
            poller.register(self._source, select.POLLIN | (of_stream if both else 0))
        else:
            poller.register(self._sinks[self._blocked[0]], select.POLLOUT)
        if of_stream and not (both and self._blocked is None):
            poller.register(self._sink, of_stream)
        reads = select.POLLIN if self.writer.size < _MOST else 0
        for descriptor in self._sources if reads else ():
            poller.register(descriptor, reads)
        wanted = reads | (select.POLLOUT if self._deliveries else 0)
        if not self.local_over and wanted:
            poller.register(self.local, wanted)
        wait = 0 if self._reader.early and self._blocked is None else _BEAT_EVERY * 1000 / 2
        found = poller.poll(wait)
        # That a socket takes more is no word of its other end.
        return {each for each, events in found if (each, events) != (self._source, select.POLLOUT)}

    def _keep_up(self, now: float) -> None:
        if now - self._beaten >= _BEAT_EVERY:
            self._beaten = now
            self.writer.beat(self._beat())
        if now - self._heard > SILENCE:
            raise TimeoutError

    def close(self) -> None:
        """Close the local socket, and the files that have not come whole."""
        self.local.close()
        self._incoming.drop()

    def finish_local(self) -> None:
        """Send what waits for the local socket, however long its other end does not read."""
        while self._deliveries and not self.local_over:
            linux.ready(self.local.fileno(), select.POLLOUT, None)
            self._flush_local()

    def finish(self, seconds: float) -> None:
        """Write what waits for the stream, for some seconds at most."""
        end = time.monotonic() + seconds
        with contextlib.suppress(Closed):
            while not self.writer.flush() and (left := end - time.monotonic()) > 0:
                linux.ready(self._sink, select.POLLOUT, left)

    # --- local socket -> stream ----------------------------------------------------------------

    def _take_packet(self) -> None:
        flags = socket.MSG_CMSG_CLOEXEC
        try:
            data, descriptors, _, _ = socket.recv_fds(self.local, _ROOM, _FILES, flags)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in [*self._sources]:  # what was written before it
            self._read_source(descriptor, _PIPE)
        if not data:
            self.local_over = True
            return
        files = [(each, self._described(each)) for each in descriptors]
        kinds = b"".join(_KIND.pack(*what) for _, what in files)
        self.writer.put(PACKET, bytes([len(files)]) + kinds + data)
        for descriptor, (kind, size) in files:
            if kind == _FILE:
                self.writer.put_pieces(_pieces(descriptor, size))

    def _described(self, descriptor: int) -> tuple[bytes, int]:
        """Return how a descriptor travels, and the size of a file. Keep a stream."""
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            linux.seal_size(descriptor)
            return _FILE, os.fstat(descriptor).st_size
        if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev:
            os.close(descriptor)
            return _NULL, 0
        os.set_blocking(descriptor, False)
        self._sinks[self._given] = descriptor
        self._given += 1
        return _STREAM, 0

    def _read_source(self, descriptor: int, most: int = 0) -> None:
        """Read a pipe once, or what is there now, ``most`` bytes of it."""
        number = self._sources[descriptor]
        while True:
            try:
                data = os.read(descriptor, _ROOM)
            except BlockingIOError:
                return
            self.writer.put(OUTPUT, _NUMBER.pack(number) + data)
            if not data:
                del self._sources[descriptor]
                os.close(descriptor)
                return
            most -= len(data)
            if most <= 0:
                return

    # --- stream -> local socket ----------------------------------------------------------------

    def _packet_begins(self, body: memoryview) -> None:
        if self._incoming.expected:
            raise StreamBroken("a packet where a piece of a file was due")
        count, data = body[0], body[1:]
        for _ in range(count):
            kind, size = _KIND.unpack_from(data)
            data = data[_KIND.size :]
            self._incoming.descriptors.append(self._stand_in(kind, size))
        self._incoming.data = bytes(data)
        self._deliver_complete()

    def _stand_in(self, kind: bytes, size: int) -> int:
        """Return a descriptor that stands for one of the other side."""
        if kind == _FILE:
            return self._incoming.file(size)
        if kind not in (_NULL, _STREAM):
            raise StreamBroken(f"a file of kind {kind!r}")
        if kind == _NULL:
            return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        self._sources[ours] = self._made
        self._made += 1
        return theirs

    def _deliver_complete(self) -> None:
        packet = self._incoming.complete()
        if packet is not None:
            self._deliveries.append(packet)
            self._flush_local()

    def deliver(self, data: bytes) -> None:
        """Send a packet of this process's own to the local socket."""
        self._deliveries.append((data, []))
        self._flush_local()

    def _flush_local(self) -> None:
        while self._deliveries:
            data, descriptors = self._deliveries[0]
            try:
                socket.send_fds(self.local, [data], descriptors)
            except BlockingIOError:
                return
            except OSError:
                self.local_over = True
                while self._deliveries:
                    close_all(self._deliveries.popleft()[1])
                return
            self._deliveries.popleft()
            close_all(descriptors)

    def _output(self, body: memoryview) -> None:
        (number,) = _NUMBER.unpack_from(body)
        if number not in self._sinks:
            return  # nothing reads it any more
        if len(body) == _NUMBER.size:
            os.close(self._sinks.pop(number))
            return
        self._blocked = number, body[_NUMBER.size :]
        self._write_blocked()

    def _write_blocked(self) -> None:
        assert self._blocked is not None
        number, left = self._blocked
        try:
            left = left[os.write(self._sinks[number], left) :]
        except BlockingIOError:
            return
        except OSError:  # nothing reads it any more
            os.close(self._sinks.pop(number))
            left = left[:0]
        self._blocked = (number, left) if left else None


class _IncomingPacket:
    """The packet that is coming, with files whose bytes come after it."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.descriptors: list[int] = []
        self._expected: deque[tuple[mmap.mmap, int]] = deque()
        """The files whose bytes are to come, and their sizes."""
        self._filled = 0

    @property
    def expected(self) -> bool:
        """Whether bytes of a file are to come next."""
        return bool(self._expected)

    def file(self, size: int) -> int:
        """Return a new memory file for bytes that come next."""
        descriptor = linux.memory_file("xmp-received")
        if size:
            try:
                os.ftruncate(descriptor, size)
                self._expected.append((mmap.mmap(descriptor, size), size))
            except (OSError, OverflowError) as error:
                os.close(descriptor)
                raise StreamBroken(f"no room for a file of {size} bytes: {error}") from None
        return descriptor

    def room(self, size: int) -> memoryview:
        """Return the next part of the file that is coming. Raise StreamBroken."""
        if not self._expected or size > self._expected[0][1] - self._filled:
            raise StreamBroken("more bytes of a file than were announced")
        start = self._filled
        self._filled += size
        return memoryview(self._expected[0][0])[start : self._filled]

    def complete(self) -> tuple[bytes, list[int]] | None:
        """Return the packet if all of it has come."""
        if self._expected and self._filled == self._expected[0][1]:
            self._expected.popleft()
            self._filled = 0
        if self.data is None or self._expected:
            return None
        packet = self.data, self.descriptors
        self.data, self.descriptors = None, []
        for descriptor in packet[1]:
            linux.seal(descriptor)
        return packet

    def drop(self) -> None:
        """Close the files of a packet that has not come whole."""
        close_all(self.descriptors)
        self.descriptors = []


def _pieces(descriptor: int, size: int) -> Iterator[memoryview]:
    """Yield a file in parts, and close it."""
    try:
        whole = map_file(descriptor, size) if size else memoryview(b"")
    finally:
        os.close(descriptor)
    for start in range(0, size, PIECE_SIZE):
        yield whole[start : start + PIECE_SIZE]
