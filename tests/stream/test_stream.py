"""Two bridges with a stream between them: packets, files, output, and what is refused."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.waiting import until
from xmp._hosts.stream import bridge as bridges
from xmp._hosts.stream.bridge import Bridge
from xmp._hosts.stream.frames import (
    BEAT,
    ENDED,
    HELLO,
    OUTPUT,
    PACKET,
    PIECE,
    FrameReader,
    FrameWriter,
    Seal,
    StreamBroken,
    frame_head,
    seals,
)
from xmp._processes.messages.connection import Closed
from xmp._processes.system import linux

SECRET = os.urandom(32).hex()


def no_file(size: int) -> memoryview:
    raise StreamBroken(f"no file was announced: {size}")


class End:
    """One side: its bridge in a thread, and the other end of its local socket."""

    def __init__(self, source: int, sink: int, ours: Seal | None, theirs: Seal | None) -> None:
        self.local, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.bridge = Bridge(inner, lambda: b"\0")
        self.error: BaseException | None = None
        reader = FrameReader(source, self.bridge.room, theirs)
        self.bridge.use(reader, FrameWriter(sink, ours), source, sink)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.bridge.local_over:
                self.bridge.turn()
            self.bridge.finish(5)
        except (Closed, StreamBroken, TimeoutError) as error:
            self.error = error

    def close(self) -> None:
        self.local.close()
        self.thread.join(10)
        self.bridge.close()

    def send(self, data: bytes, *descriptors: int) -> None:
        socket.send_fds(self.local, [data], descriptors)

    def received(self) -> tuple[bytes, list[int]]:
        self.local.settimeout(30)
        data, descriptors, _, _ = socket.recv_fds(self.local, 1 << 17, 16)
        return data, descriptors


@pytest.fixture(params=["", SECRET], ids=["plain", "sealed"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[End, End]]:
    """The driver's side, and the host's."""
    there, back = os.pipe(), os.pipe()
    one, two = seals(request.param, "mark"), seals(request.param, "mark")
    near = End(back[0], there[1], one[0], one[1])
    far = End(there[0], back[1], two[1], two[0])
    yield near, far
    near.close()
    far.close()
    for descriptor in (*there, *back):
        os.close(descriptor)


def memory_file(data: bytes) -> int:
    descriptor = linux.memory_file("test")
    with open(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor


def content(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, 5 << 20])
def test_files_arrive_with_their_packet(ends: tuple[End, End], size: int) -> None:
    near, far = ends
    data = os.urandom(size)
    for sender, receiver in ((near, far), (far, near)):
        file = memory_file(data)
        sender.send(b"before")
        sender.send(b"with files", file, file)
        sender.send(b"after")
        os.close(file)
        assert receiver.received() == (b"before", [])
        words, files = receiver.received()
        assert words == b"with files"
        assert [content(each) == data for each in files] == [True, True]
        assert receiver.received() == (b"after", [])


def test_a_file_that_has_arrived_cannot_be_changed(ends: tuple[End, End]) -> None:
    near, far = ends
    file = memory_file(b"x" * 4096)
    near.send(b"image", file)
    os.close(file)
    (descriptor,) = far.received()[1]
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"y", 0)
    os.close(descriptor)


def test_what_is_written_to_a_stream_comes_back_before_the_packet_after_it(
    ends: tuple[End, End],
) -> None:
    near, far = ends
    ours, theirs = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    near.send(b"start", null, theirs)
    os.close(theirs)
    os.close(null)
    _, (there_null, there) = far.received()
    assert os.read(there_null, 1) == b""
    os.close(there_null)
    for number in range(100):
        os.write(there, b"line %d\n" % number)
        far.send(b"packet %d" % number)
        assert near.received() == (b"packet %d" % number, [])
        assert os.read(ours, 100) == b"line %d\n" % number
    os.close(there)
    assert os.read(ours, 1) == b""  # its end, too
    os.close(ours)


def test_a_slow_reader_delays_and_loses_nothing(ends: tuple[End, End]) -> None:
    near, far = ends
    ours, theirs = os.pipe()
    near.send(b"start", theirs)
    os.close(theirs)
    (there,) = far.received()[1]
    total = 4 << 20
    written = threading.Thread(target=lambda: (write_all(there, total), os.close(there)))
    written.start()
    far.send(b"more")  # not delayed by the flood for ever
    read = 0
    while data := os.read(ours, 1 << 16):
        read += len(data)
    written.join(10)
    assert read == total
    assert near.received() == (b"more", [])
    os.close(ours)


def write_all(descriptor: int, total: int) -> None:
    while total:
        total -= os.write(descriptor, b"x" * min(total, 1 << 16))


def test_a_stream_that_is_read_no_more_ends_at_its_writer(ends: tuple[End, End]) -> None:
    near, far = ends
    ours, theirs = os.pipe()
    near.send(b"start", theirs)
    os.close(theirs)
    os.close(ours)
    (there,) = far.received()[1]
    write_all(there, 1 << 20)  # taken, and dropped
    far.send(b"more")
    assert near.received() == (b"more", [])
    os.close(there)


@pytest.fixture
def over_a_socket() -> Iterator[tuple[End, End]]:
    """The stream is one descriptor for both directions, as over TCP."""
    one, two = socket.socketpair()
    near, far = (End(each.fileno(), each.fileno(), None, None) for each in (one, two))
    yield near, far
    near.close()
    far.close()
    for each in (one, two):
        each.close()


def test_an_end_that_cannot_write_to_a_socket_hears_beats(
    over_a_socket: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output that is not read for longer than the silence that ends a stream only waits."""
    monkeypatch.setattr(bridges, "SILENCE", 0.6)
    monkeypatch.setattr(bridges, "_BEAT_EVERY", 0.1)
    near, far = over_a_socket
    ours, theirs = os.pipe()
    near.send(b"start", theirs)
    os.close(theirs)
    (there,) = far.received()[1]
    os.set_blocking(there, False)
    end = time.monotonic() + 5 * bridges.SILENCE
    while time.monotonic() < end and near.thread.is_alive() and far.thread.is_alive():
        with contextlib.suppress(BlockingIOError):
            os.write(there, b"x" * 65536)
        linux.ready(there, select.POLLOUT, 0.05)
    assert (near.error, far.error) == (None, None)
    os.close(ours)
    os.close(there)
    far.send(b"over")
    assert near.received() == (b"over", [])


def test_the_end_of_one_side_is_seen_by_the_other(ends: tuple[End, End]) -> None:
    near, far = ends
    near.local.close()
    near.thread.join(10)
    os.close(near.bridge._sink)  # type: ignore[attr-defined]
    far.thread.join(10)
    assert isinstance(far.error, Closed)
    os.dup2(os.open(os.devnull, os.O_WRONLY), near.bridge._sink)  # type: ignore[attr-defined]


def frames(*parts: tuple[int, bytes]) -> bytes:
    return b"".join(frame_head(kind, len(body)) + body for kind, body in parts)


def packet(data: bytes, kind: bytes = b"", size: int = 0) -> bytes:
    files = kind and kind + size.to_bytes(8, "big")
    return frames((PACKET, bytes([len(kind)]) + files + data))


HOSTILE = {
    "a kind that does not exist": frames((77, b"")),
    "a body without limit": frame_head(OUTPUT, 1 << 31),
    "bytes of no file": frames((PIECE, b"x")),
    "more bytes than were announced": packet(b".", b"f", 1) + frames((PIECE, b"xy")),
    "a packet within a file": packet(b".", b"f", 9) + packet(b"."),
    "a packet that is cut off": frames((PACKET, b"\2f")),
    "an empty packet": frames((PACKET, b"")),
    "a file larger than memory": packet(b".", b"f", 1 << 62),
    "a kind of file that does not exist": packet(b".", b"x"),
    "output without a number": frames((OUTPUT, b"x")),
    "a frame in the wrong direction": frames((HELLO, b"{}")),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_stream_is_refused(data: bytes) -> None:
    there, back = os.pipe(), os.pipe()
    end = End(there[0], back[1], None, None)
    os.write(there[1], data)
    end.thread.join(10)
    end.close()
    assert isinstance(end.error, StreamBroken), end.error
    for descriptor in (*there, *back):
        os.close(descriptor)


Change = Callable[[bytes], bytes]
CHANGES: dict[str, Change] = {
    "a bit of the body": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a bit of the code": lambda data: data[:5] + bytes([data[5] ^ 1]) + data[6:],
    "its kind": lambda data: bytes([OUTPUT]) + data[1:],
    "repeated": lambda data: data + data,
    "no code": lambda data: data[:5] + data[21:],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_sealed_frame_that_was_changed_is_refused(change: Change) -> None:
    taken = through(change)
    assert isinstance(taken[-1], (StreamBroken, Closed)), taken
    assert [each for each in taken[:-1] if each != (PACKET, b"body")] == []


def test_a_sealed_frame_is_taken_and_one_of_the_other_direction_is_not() -> None:
    assert through(lambda data: data)[0] == (PACKET, b"body")
    assert isinstance(through(lambda data: data, to="driver")[0], StreamBroken)


def test_the_first_frame_without_a_code_says_hello_and_no_other_has_none() -> None:
    source, sink = os.pipe()
    os.write(sink, frames((HELLO, b"{}"), (HELLO, b"{}")))
    reader = FrameReader(source, no_file, seals(SECRET, "mark")[0], first_plain=True)
    taken = reader.frames()
    assert next(taken)[0] == HELLO
    os.write(sink, bytes(32))
    with pytest.raises(StreamBroken):
        next(taken)
    for kind in (PACKET, PIECE, OUTPUT, BEAT, ENDED):
        other, theirs = os.pipe()
        os.write(theirs, frames((kind, b"")))
        with pytest.raises(StreamBroken):
            list(FrameReader(other, no_file, seals(SECRET, "mark")[0], first_plain=True).frames())
        for descriptor in (other, theirs):
            os.close(descriptor)
    for descriptor in (source, sink):
        os.close(descriptor)


def test_contents_of_files_have_codes_or_not() -> None:
    def code(kind: int, body: bytes, contents: bool) -> bytes:
        return Seal(bytes(32), b"", contents).code(kind, body)

    assert code(PIECE, b"x", contents=True) != code(PIECE, b"y", contents=True)
    assert code(PIECE, b"x", contents=False) == code(PIECE, b"y", contents=False)
    assert code(PACKET, b"x", contents=False) != code(PACKET, b"y", contents=False)


def through(change: Change, to: str = "host") -> list[Any]:
    """What a reader takes of a sealed frame that was changed on its way."""
    source, sink = os.pipe()
    of_host, of_driver = seals(SECRET, "mark")
    writer = FrameWriter(sink, of_host if to == "host" else of_driver)
    writer.put(PACKET, b"body")
    assert writer.flush()
    data = os.read(source, 1 << 16)
    os.write(sink, change(data))
    os.close(sink)
    taken: list[Any] = []
    reader = FrameReader(source, no_file, seals(SECRET, "mark")[0])
    try:
        for kind, body in reader.frames():
            taken.append((kind, bytes(body)))
    except (StreamBroken, Closed) as error:
        taken.append(error)
    os.close(source)
    return taken


def test_silence_of_the_other_side_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "SILENCE", 0.1)
    there, back = os.pipe(), os.pipe()
    end = End(there[0], back[1], None, None)
    end.thread.join(10)
    end.close()
    assert isinstance(end.error, TimeoutError)
    for descriptor in (*there, *back):
        os.close(descriptor)


def test_each_side_beats_while_nothing_else_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "_BEAT_EVERY", 0.01)
    there, back = os.pipe(), os.pipe()
    end = End(there[0], back[1], None, None)
    reader = FrameReader(back[0], no_file)
    beats: list[Any] = []
    until(lambda: beats.extend(reader.frames()) or len(beats) > 2, 10, "beats")
    assert {kind for kind, _ in beats} == {BEAT}
    end.close()
    for descriptor in (*there, *back):
        os.close(descriptor)
