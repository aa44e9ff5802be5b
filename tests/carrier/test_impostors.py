"""Impostors: programs that hold the coordinator's port before host 0 does."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.strangers import exactly
from tests.support.waiting import until
from xmp._hosts.carrier import kinds
from xmp._hosts.carrier.host_link import HostLink
from xmp._hosts.carrier.sealed import ANSWER_SIZE, MAGIC, OTHER_SECRET, Greeting, Keys
from xmp._hosts.carrier.words import HostCard
from xmp._words.errors import StartError
from xmp._words.host_words import HostMeeting

pytestmark = pytest.mark.hosts

JOB, SECRET = "7", b"of this job"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Impostor:
    """A program at the coordinator's address that does this with each connection."""

    def __init__(self, stack: ExitStack, does: Callable[[socket.socket], Any]) -> None:
        self._does = does
        self._server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.address = self._server.getsockname()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        stack.callback(self._thread.join)
        stack.callback(self._server.shutdown, socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(3)
                    self._does(connection)
                except (OSError, AssertionError):
                    pass


def rubbish(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n" + bytes(100_000))
    connection.recv(1)


def mirror(connection: socket.socket) -> None:
    """The member's own proof as the coordinator's."""
    connection.sendall(MAGIC + os.urandom(32))
    answer = exactly(connection, 80)
    connection.sendall(b"W" + answer[48:])
    connection.recv(1)


def guesser(connection: socket.socket) -> None:
    """A coordinator of this job's id with another secret, which takes any answer."""
    greeting = Greeting(Keys(JOB, b"guessed"))
    connection.sendall(greeting.data)
    answer = exactly(connection, 80)
    connection.sendall(
        b"W" + Keys(JOB, b"guessed").proof(b"coordinator", greeting.data, answer[:32])
    )
    connection.recv(1)


def drip(connection: socket.socket) -> None:
    for byte in MAGIC:
        connection.sendall(bytes([byte]))
        if select.select([connection], [], [], 0.3)[0]:
            return  # the host has gone


@pytest.mark.parametrize("does", [rubbish, mirror, guesser, drip, lambda c: c.recv(1)])
def test_an_impostor_gets_no_host(stack: ExitStack, does: Callable[[socket.socket], Any]) -> None:
    """The host waits for the right coordinator, and says in the end what it has met."""
    impostor = Impostor(stack, does)
    card = HostCard(1, 2, "n1", 2, "0.3.0", "3.11.7")
    link = HostLink(HostMeeting(1, 2, *impostor.address), card, 1.5, JOB, SECRET)
    link.start()
    try:
        with pytest.raises(StartError, match=r"the coordinator at 127\.0\.0\.1 port"):
            link.come(0, print)
    finally:
        link.end()


@pytest.mark.parametrize(
    ("secret", "said"), [(b"", "this host has no XMP_JOB_SECRET"), (SECRET, "another secret")]
)
def test_a_host_that_is_turned_away_is_told_why(stack: ExitStack, secret: bytes, said: str) -> None:
    def turn_away(connection: socket.socket) -> None:
        connection.sendall(Greeting(Keys(JOB, b"theirs")).data)
        exactly(connection, ANSWER_SIZE)
        connection.sendall(OTHER_SECRET)

    impostor = Impostor(stack, turn_away)
    card = HostCard(1, 2, "n1", 2, "0.3.0", "3.11.7")
    link = HostLink(HostMeeting(1, 2, *impostor.address), card, 5, JOB, secret)
    link.start()
    try:
        with pytest.raises(StartError, match=said):
            link.come(0, print)
    finally:
        link.end()


def test_a_coordinator_that_floods_a_host_is_lost(stack: ExitStack) -> None:
    """Without a secret: an impostor that guesses the job's id."""
    over = threading.Event()

    def flood(connection: socket.socket) -> None:
        greeting = Greeting(Keys(JOB, b""))
        connection.sendall(greeting.data)
        welcome, frames = greeting.reply(exactly(connection, 80))
        assert frames is not None
        connection.sendall(welcome + frames.frame(kinds.CALL, b'{"absent": 0}'))
        while not over.is_set():
            connection.sendall(frames.frame(kinds.BEAT))

    impostor = Impostor(stack, flood)
    card = HostCard(1, 2, "n1", 2, "0.3.0", "3.11.7")
    link = HostLink(HostMeeting(1, 2, *impostor.address), card, 5, JOB, b"")
    link.start()
    try:
        link.come(0, print)
        until(lambda: (link.take_in(), link.verdict)[1], 5)
        assert link.verdict is not None
        assert link.verdict.kind == "HostLost"
    finally:
        over.set()
        link.end()
