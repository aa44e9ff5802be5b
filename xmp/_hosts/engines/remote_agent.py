"""An agent on another machine, as its driver has it: the process that holds the stream to it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from xmp._hosts.stream import boot
from xmp._hosts.stream.ways import order_of_command
from xmp._os import signals
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.hosts import (
    FilePart,
    FilePartRead,
    FileSizes,
    FilesSized,
    HostGone,
    HostReached,
    HostStopped,
    Ping,
    Pong,
)
from xmp._processes.system import linux, processes

from .local_agent import LocalAgent

__all__ = ["RemoteAgent", "RemoteFiles", "measure_clocks", "started_by"]

M = TypeVar("M", bound=Message)
_PATIENCE = 8.0
"""Seconds for an answer of an agent that waits."""
_ROUNDS = 4
_FRESH = 20.0
"""Seconds in which a crystal goes wrong by less than a round trip."""
_PART = 4 << 20


def started_by(
    index: int, name: str, prefix: Sequence[str], wanted: boot.Wanted, env: Mapping[str, str]
) -> RemoteAgent:
    """Start the command that goes to a host: ``prefix``, and what the host is to run."""
    mark = secrets.token_bytes(32)
    secret = secrets.token_hex(32) if wanted.sealed else ""
    command = [*prefix, boot.command(wanted, mark)]
    return RemoteAgent(index, name, order_of_command(command, mark, secret), env)


class RemoteAgent(LocalAgent):
    """The agent of a host that a stream reaches.

    The child of this process is ``near``: it gives what the agent sends, and says how it has ended.
    """

    module = "xmp._hosts.stream.near"

    def __init__(
        self,
        index: int,
        name: str,
        order: bytes,
        env: Mapping[str, str],
        files: Sequence[int] = (),
    ) -> None:
        """Start ``near`` with these variables, and send it this order with these files."""
        super().__init__(index, name, env)
        self.facts: dict[str, Any] = {}
        """What the host has; empty until it has answered."""
        self._link, self._how, self._stopped = self.pid, "", False
        descriptor = linux.memory_file("xmp-link")  # a command can be longer than a packet
        with open(descriptor, "wb", buffering=0) as file:
            file.write(order)
            with contextlib.suppress(OSError):  # it has ended: what is read next says how
                socket.send_fds(self._connection.end, [b"."], [descriptor, *files])

    def dial(self, address: str, port: int, why: str = "") -> None:
        """Have ``near`` connect to where the host listens. ``why`` there is no port, if it is 0."""
        given = json.dumps({"address": address, "port": port, "why": why})
        with contextlib.suppress(OSError):
            self._connection.end.send(given.encode())

    def recv(self, timeout: float | None = None) -> tuple[Message, list[int]]:
        message, descriptors = super().recv(timeout)
        if isinstance(message, HostGone):
            self._how = message.text
            raise Closed(message.text)
        if isinstance(message, HostReached):
            self.facts = json.loads(message.facts)
        elif isinstance(message, HostStopped):
            self._stopped = message.stopped
        return message, descriptors

    def answer(self, kind: type[M], seconds: float) -> M:
        """Return the next answer of this kind. Raise Closed, TimeoutError."""
        end = time.monotonic() + seconds
        while True:
            # A wait ends early where a signal may have come.
            while not linux.ready(self.fileno(), select.POLLIN, max(0.0, end - time.monotonic())):
                signals.deliver()
                if time.monotonic() >= end:
                    raise TimeoutError(f"has not answered for {seconds:g} s")
            message, _ = self.recv()
            if isinstance(message, kind):
                return message

    def kill(self) -> None:
        """End the stream at once: the host then ends the agent."""
        self._kill_link()

    def _kill_link(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._link, signal.SIGKILL)  # with the command

    def end(self) -> None:
        """End it, as any agent; at once, where the host has not been reached."""
        if not self.facts:
            self._kill_link()  # it may wait for a host that is silent
        super().end()

    def is_stopped(self) -> bool:
        return self._stopped or processes.is_stopped(self._link)

    def how_it_ended(self) -> str:
        return self._how or f"has lost its stream: xmp-link {super().how_it_ended()}"

    def hang_up(self) -> None:
        """Close the stream; ``end`` waits for it."""
        self._connection.close()


def measure_clocks(agents: Sequence[RemoteAgent]) -> None:
    """Measure how far the clocks of hosts are ahead, unless that was done a moment ago."""
    late = [agent for agent in agents if not agent.clock.is_fresh(_FRESH)]
    for _ in range(_ROUNDS):
        with contextlib.suppress(Closed, TimeoutError):  # the launch says so
            asked = time.monotonic_ns()
            for agent in late:
                agent.send(Ping())
            for agent in late:
                read = agent.answer(Pong, _PATIENCE).at
                agent.clock.measured(asked, read, time.monotonic_ns())


class RemoteFiles:
    """The files of a host, of which its agent sends what is asked for."""

    def __init__(self, agent: RemoteAgent) -> None:
        self._agent = agent

    def _asked(self, question: Message, kind: type[M]) -> M:
        try:
            self._agent.send(question)
            return self._agent.answer(kind, _PATIENCE)
        except Closed:
            why = f"cannot be reached: it {self._agent.how_it_ended()}"
            raise ConnectionResetError(errno.ECONNRESET, why) from None

    def sizes(self, paths: Sequence[str]) -> list[int]:
        found = self._asked(FileSizes(list(paths)), FilesSized).sizes
        return [max(0, each) for each in found]

    def has(self, path: str) -> bool:
        return self._asked(FileSizes([path]), FilesSized).sizes[0] >= 0

    def parts(self, path: str, start: int, size: int) -> Generator[memoryview, None, None]:
        while size > 0:
            found = self._asked(FilePart(path, start, min(size, _PART)), FilePartRead)
            if found.error:
                raise OSError(errno.EIO, found.error)
            if not found.data:
                return
            yield memoryview(found.data)
            start, size = start + len(found.data), size - len(found.data)
