"""The handshake of a stream over TCP: who may connect, and strangers."""

from __future__ import annotations

import secrets
import socket
import threading

import pytest

from tests.support.strangers import exactly
from xmp._hosts.carrier.sealed import ANSWER_SIZE, GREETING_SIZE
from xmp._hosts.stream import tcp
from xmp._hosts.stream.tcp import Callers, Met, Secret, dialled, listening, port_range

HERE = "127.0.0.2"
SECRET = Secret(secrets.token_hex(32), contents=True)
ANY = port_range("")


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def is_closed(connection: socket.socket, seconds: float = 10) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(1 << 12):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


class Waiting:
    """What listens, in a thread."""

    def __init__(self, local: int = -1) -> None:
        listener = listening(HERE, ANY)
        self.port = port_of(listener)
        self.met: Met | None = None
        self._callers, self._local = Callers(listener, SECRET), local
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.met = self._callers.met(self._local)

    def call(self) -> socket.socket:
        return socket.create_connection((HERE, self.port), 10)

    def end(self) -> None:
        """Both ends meet, and one key of each is the other's other."""
        met = dialled(HERE, self.port, SECRET, 5)
        self.thread.join(10)
        assert self.met is not None
        assert met.ours.code(1, b"x") == self.met.theirs.code(1, b"x")
        assert met.theirs.code(1, b"x") == self.met.ours.code(1, b"x")
        for each in (met.socket, self.met.socket):
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            each.close()
        with pytest.raises(ConnectionRefusedError):
            self.call()


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.mark.parametrize("data", [bytes(ANSWER_SIZE), b"GET / HTTP/1.1\r\n" * 9], ids=["0", "http"])
def test_a_stranger_that_answers_is_dropped(waiting: Waiting, data: bytes) -> None:
    with waiting.call() as stranger:
        exactly(stranger, GREETING_SIZE)
        stranger.sendall(data)
        assert is_closed(stranger)
    waiting.end()


def test_one_with_another_secret_is_dropped(waiting: Waiting) -> None:
    with pytest.raises(OSError, match="what answers there has another secret"):
        dialled(HERE, waiting.port, Secret(secrets.token_hex(32), contents=True), 5)
    waiting.end()


def test_one_that_says_nothing_is_dropped_after_a_while(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "_HANDSHAKE", 0.2)
    with waiting.call() as stranger:
        assert is_closed(stranger)
    waiting.end()


def test_few_wait_at_a_time(waiting: Waiting) -> None:
    strangers = [waiting.call() for _ in range(40)]
    first, last = strangers[:24], strangers[24:]
    assert all(map(is_closed, first))
    for each in last:
        exactly(each, GREETING_SIZE)
    waiting.end()
    assert all(map(is_closed, last))
    for each in strangers:
        each.close()


def test_the_answer_to_another_greeting_is_no_proof(waiting: Waiting) -> None:
    """A stranger between both passes on what it has heard from an earlier connection."""
    with Relay(waiting.port) as relay:
        dialled(HERE, relay.port, SECRET, 5).socket.close()
        answer = relay.heard
    waiting.thread.join(10)
    assert waiting.met is not None
    waiting.met.socket.close()
    assert len(answer) == ANSWER_SIZE
    again = Waiting()
    with again.call() as stranger:
        exactly(stranger, GREETING_SIZE)
        stranger.sendall(answer)
        assert is_closed(stranger)
    again.end()


class Relay:
    """A stranger that passes one handshake on, and keeps the answer."""

    def __init__(self, port: int) -> None:
        self._to, self._listener = port, listening(HERE, ANY)
        self.port, self.heard = port_of(self._listener), b""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        one, _ = self._listener.accept()
        with one, socket.create_connection((HERE, self._to)) as other:
            one.sendall(exactly(other, GREETING_SIZE))
            self.heard = exactly(one, ANSWER_SIZE)
            other.sendall(self.heard)
            one.sendall(exactly(other, 33))

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self._listener.close()


@pytest.mark.parametrize("greets", [False, True])
def test_what_listens_may_be_another_program(greets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_HANDSHAKE", 0.2)
    listener = listening(HERE, ANY)

    def serve() -> None:
        connection, _ = listener.accept()
        if greets:
            connection.sendall(bytes(100))
        assert is_closed(connection)  # by the other end, which waits no longer
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(OSError, match="another program" if greets else "timed out"):
        dialled(HERE, port_of(listener), SECRET, 5)
    thread.join()
    listener.close()


def test_waiting_ends_when_the_driver_has_something_to_say() -> None:
    ours, theirs = socket.socketpair()
    waiting = Waiting(theirs.fileno())
    with waiting.call() as stranger:
        ours.close()
        waiting.thread.join(10)
        assert waiting.met is None
        assert is_closed(stranger)
    theirs.close()


def test_ports_of_a_range() -> None:
    ports = port_range("20020-20021")
    with listening(HERE, ports) as one, listening(HERE, ports) as two:
        assert (port_of(one), port_of(two)) == (20020, 20021)
        with pytest.raises(OSError, match="in use"):
            listening(HERE, ports)
    with pytest.raises(OSError, match="assign requested"):
        listening("192.0.2.1", ANY)  # no address of this host
    for wrong in ("20000", "1-0", "0-5", "1-65536", "a-b", "-"):
        with pytest.raises(ValueError, match=wrong):
            port_range(wrong)
