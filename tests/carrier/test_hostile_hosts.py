"""Strangers against the coordinator: they change nothing, or end the launch with words."""

from __future__ import annotations

import json
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.strangers import exactly
from tests.support.waiting import until
from xmp._hosts.carrier import kinds
from xmp._hosts.carrier.host_link import HostLink
from xmp._hosts.carrier.sealed import GREETING_SIZE, WELCOME_SIZE, Answer, Frames, Keys
from xmp._hosts.carrier.words import HostCard, encode
from xmp._words.errors import PlanError
from xmp._words.host_words import HostMeeting

pytestmark = pytest.mark.hosts

JOB, SECRET = "7", b"of this job"
NO_MORE = 64 << 20
"""Bytes of memory that a coordinator of a small job may take, however many connect."""


class Job:
    """Two hosts; the first has started."""

    def __init__(self, stack: ExitStack, secret: bytes = SECRET) -> None:
        self._stack, self._secret = stack, secret
        self.listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
        self.address = self.listener.getsockname()
        self.links = [self.link(0)]
        self.links[0].start(self.listener.fileno())

    def link(self, index: int, limit: float = 20.0) -> HostLink:
        card = HostCard(index, 2, f"n{index}", 2, "0.3.0", "3.11.7")
        link = HostLink(HostMeeting(index, 2, *self.address), card, limit, JOB, self._secret)
        self._stack.callback(link.end)
        return link

    def connect(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self.address, timeout=10))

    def enter(self) -> tuple[socket.socket, Frames]:
        """A connection with its handshake done, by a stranger who knows or guesses the secret."""
        connection = self.connect()
        answer = Answer(Keys(JOB, self._secret), exactly(connection, GREETING_SIZE))
        connection.sendall(answer.data)
        return connection, answer.frames(exactly(connection, WELCOME_SIZE))

    def runs(self) -> None:
        """The launch goes from the roll call to its end."""
        self.links.append(self.link(1))
        self.links[1].start()
        errors: list[BaseException] = []

        def come(link: HostLink) -> None:
            try:
                link.come(0, print)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=come, args=(link,)) for link in self.links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        for link in self.links:
            link.done()
        until(self._done, 10)

    def _done(self) -> bool:
        for link in self.links:
            link.take_in()
        assert not any(link.verdict for link in self.links)
        return all(link.all_done for link in self.links)

    @property
    def memory(self) -> int:
        status = Path(f"/proc/{self.links[0].pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10


def dropped(connection: socket.socket) -> bool:
    """Whether the coordinator has closed the connection, after whatever it had sent."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def closed(connection: socket.socket) -> bool:
    """Whether the coordinator closes the connection within its time-out."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        yield stack
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def job(stack: ExitStack) -> Job:
    return Job(stack)


def test_thousands_of_connections_keep_no_host_out(job: Job) -> None:
    for number in range(3000):
        connection = job.connect()
        connection.sendall(b"x" * (number % 3))  # some begin, none goes on
    job.runs()
    assert job.memory < NO_MORE


def test_one_that_connects_all_the_time_keeps_no_host_out(job: Job) -> None:
    """Connections come and go, many in one turn of the coordinator's loop."""
    over = threading.Event()

    def storm() -> None:
        while not over.is_set():
            with socket.create_connection(job.address) as connection:
                connection.sendall(b"\xff" * 80)

    threads = [threading.Thread(target=storm) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        job.runs()
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_one_that_is_slow_is_sent_away(job: Job) -> None:
    connection = job.connect()
    exactly(connection, GREETING_SIZE)
    connection.settimeout(0.5)
    while not closed(connection):
        connection.sendall(b"x")
    job.runs()


BOMBS = [
    b"[" * 8000,
    b'{"a":' * 1500,
    b'{"index": ' + b"9" * 8000 + b"}",
    b'{"index": NaN}',
    b'{"index": 1, "index": "1"}',
    b'{"name": "\xff"}',
    b'{"index": -1}',
    b'{"index": 0, "hosts": 2}',
    b'{"index": 1099511627776, "hosts": 2}',
    json.dumps({"index": 1, "hosts": 2, "attempt": -1}).encode(),
]


def refused_card(job: Job, body: bytes) -> None:
    connection, frames = job.enter()
    connection.sendall(frames.frame(kinds.CARD, body))
    connection.shutdown(socket.SHUT_WR)
    assert dropped(connection)


def test_a_card_that_cannot_be_ends_its_connection_alone(job: Job) -> None:
    """Also with the secret: a host with a broken memory is a stranger, too."""
    for number in (0, 1, 2, 3, 4, 5, 7, 9):
        print(BOMBS[number][:40])  # shown where it fails
        refused_card(job, BOMBS[number])
    job.runs()


@pytest.mark.parametrize("number", [6, 8])
def test_a_host_that_the_job_does_not_have_ends_the_launch_with_words(
    job: Job, number: int
) -> None:
    over = threading.Event()

    def attack() -> None:
        while not over.is_set():  # also before host 0 has come
            refused_card(job, BOMBS[number])

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        with pytest.raises(PlanError, match=r"came as host .* of"):
            job.links[0].come(0, print)
    finally:
        over.set()
        attacker.join()


MISDEEDS: dict[str, Callable[[Frames], bytes]] = {
    "length": lambda frames: b"\xff\xff\xff\xffC",
    "long": lambda frames: struct.pack(">IB", 1 << 19, kinds.CARD),  # a host's, before it has come
    "replay": lambda frames: bytearray(frames.frame(kinds.BEAT)) * 2,
    "verdict": lambda frames: frames.frame(kinds.VERDICT, b"{}"),
    "done": lambda frames: frames.frame(kinds.DONE),
    "kind": lambda frames: frames.frame(200),
    "flood": lambda frames: b"".join(frames.frame(kinds.BEAT) for _ in range(3000)),
}


def test_one_that_knows_the_secret_and_misbehaves_is_dropped(job: Job) -> None:
    for name, data in MISDEEDS.items():
        print(name)  # shown where it fails
        connection, frames = job.enter()
        try:
            connection.sendall(data(frames))
            connection.sendall(frames.frame(kinds.BEAT))
        except OSError:
            pass
        assert dropped(connection)
    job.runs()


def test_a_frame_of_another_connection_is_no_frame(job: Job) -> None:
    _, recorded = job.enter()
    connection, _ = job.enter()
    card = encode(HostCard(1, 2, "n1", 2, "0.3.0", "3.11.7"))
    connection.sendall(recorded.frame(kinds.CARD, card))
    assert dropped(connection)
    job.runs()


def test_one_that_never_comes_to_the_roll_call_keeps_no_host_out(stack: ExitStack) -> None:
    """Without a secret anyone can do the handshake who knows the job's id."""
    job = Job(stack, secret=b"")
    for _ in range(700):
        job.enter()
    job.runs()
    assert job.memory < NO_MORE


def test_the_coordinators_own_words_are_no_proof(job: Job) -> None:
    """Reflection: what one connection of the coordinator says is given to another."""
    first, second = job.connect(), job.connect()
    greeting = exactly(first, GREETING_SIZE)
    exactly(second, GREETING_SIZE)
    second.sendall(greeting + Keys(JOB, b"").job + bytes(32 - 12))
    assert dropped(second)
    job.runs()


def test_a_host_that_does_not_read_ends_the_launch_only(job: Job) -> None:
    connection, frames = job.enter()
    card = HostCard(1, 2, "n1", 2, "0.3.0", "3.11.7")
    connection.sendall(frames.frame(kinds.CARD, encode(card)))
    job.links[0].come(0, print)
    job.links[0].done()
    end = time.monotonic() + 5
    try:
        while time.monotonic() < end and not job.links[0].verdict:
            connection.sendall(frames.frame(kinds.CARD, encode(card)))  # each is answered
            job.links[0].take_in()
    except OSError:
        pass
    until(lambda: (job.links[0].take_in(), job.links[0].verdict)[1], 12)
    assert job.memory < NO_MORE
    assert job.links[0].verdict is not None
    assert job.links[0].verdict.host == 1


def test_a_host_that_leaves_without_a_word_is_lost(job: Job) -> None:
    connection, frames = job.enter()
    card = HostCard(1, 2, "n1", 2, "0.3.0", "3.11.7")
    connection.sendall(frames.frame(kinds.CARD, encode(card)))
    job.links[0].come(0, print)
    connection.sendall(frames.frame(kinds.LEAVE))
    connection.close()
    until(lambda: (job.links[0].take_in(), job.links[0].verdict)[1])
    assert job.links[0].verdict is not None
    assert "host 1 (n1) is lost: it has left the launch" in job.links[0].verdict.text


CRAMPED = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
from xmp._hosts.carrier.host_link import HostLink
from xmp._hosts.carrier.words import HostCard
from xmp._words.errors import PlanError
from xmp._words.host_words import HostMeeting
with socket.create_server(("127.0.0.1", 0)) as listener:
    meeting = HostMeeting(0, 64, *listener.getsockname())
    link = HostLink(meeting, HostCard(0, 64, "n0"), 20.0, "7", b"")
    link.start(listener.fileno())
try:
    link.come(0, print)
except PlanError as error:
    print(error)
link.end()
"""


def test_more_hosts_than_host_0_may_open_files_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRAMPED], capture_output=True, text=True, timeout=30
    )
    assert "host 0 may not open as many files as 64 hosts need connections" in done.stdout, (
        done.stderr
    )
