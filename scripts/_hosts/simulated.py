"""Simulated hosts: one process that does the handshake and sends the frames of many members.

Started by job.py: `simulated.py PORT FIRST LAST HOSTS`. It obeys words on standard input, one a
line, and answers with JSON lines; times are seconds of the machine's monotonic clock.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import resource
import select
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable

from xmp._hosts.carrier import kinds
from xmp._hosts.carrier.sealed import GREETING_SIZE, WELCOME_SIZE, Answer, Frames, Keys
from xmp._hosts.carrier.words import HostCard, RollState, decode, encode
from xmp._words.host_words import HostFailure

JOB, SECRET = "simulated", b"of the simulated job"
TRACEBACK = "\n".join(f'  File "train.py", line {n}, in step_{n}' for n in range(60))
AT_ONCE = 256
"""Connections that are begun before the first of them is welcome."""


def card(index: int, hosts: int, attempt: int = 0) -> HostCard:
    return HostCard(index, hosts, f"n{index}", 4, "0.3.0", "3.11.7", "cpu", 1, attempt)


class Host:
    """One simulated host: its connection and how far it is."""

    def __init__(self, index: int, hosts: int, keys: Keys, port: int) -> None:
        self.index, self._hosts, self._keys = index, hosts, keys
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer: Answer | None = None
        self._frames: Frames | None = None
        self._data = b""

    def send(self, kind: int, body: bytes = b"") -> None:
        assert self._frames is not None
        data = self._frames.frame(kind, body)
        if self.socket.send(data) != len(data):
            raise SystemExit("the coordinator does not read fast enough for this simulation")

    def read(self) -> Iterable[tuple[int, bytes]]:
        """Return the frames that have come; go on with the handshake before."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise SystemExit(f"the coordinator has closed the connection of host {self.index}")
        if self._frames is not None:
            return self._frames.take(data)
        self._data += data
        if self._answer is None and len(self._data) >= GREETING_SIZE:
            self._answer = Answer(self._keys, self._data[:GREETING_SIZE])
            self._data = self._data[GREETING_SIZE:]
            self.socket.send(self._answer.data)
        if self._answer is not None and len(self._data) >= WELCOME_SIZE:
            self._frames = self._answer.frames(self._data[:WELCOME_SIZE])
            self.send(kinds.CARD, encode(card(self.index, self._hosts)))
            return self._frames.take(self._data[WELCOME_SIZE:])
        return ()

    @property
    def met(self) -> bool:
        return self._frames is not None


class Hosts:
    """All simulated hosts of this process, in one loop."""

    def __init__(self, port: int, first: int, last: int, hosts: int) -> None:
        self._port, self._number = port, hosts
        self._keys = Keys(JOB, SECRET)
        self._wanted = iter(range(first, last))
        self._hosts: dict[int, Host] = {}
        self._greeting = 0
        """Hosts whose handshake is not over."""
        self._beats: list[tuple[float, int]] = []
        self._epoll = select.epoll()
        self._epoll.register(0, select.EPOLLIN)
        self._size = last - first
        self._heard = Counter[int]()
        """By kind, hosts that have heard it: the last of them gives the time."""
        self._awaited = kinds.CALL
        self._frames = self._bytes = self._sent = 0
        self._attempt = 0

    def run(self) -> None:
        self._connect()
        while True:
            for descriptor, _ in self._epoll.poll(self._pause()):
                if descriptor == 0:
                    self._obey(sys.stdin.readline().strip())
                else:
                    self._hear(self._hosts[descriptor])
            self._beat(time.monotonic())

    def _connect(self) -> None:
        """Begin more connections: as many hosts as this cannot be in their handshake at once."""
        while self._greeting < AT_ONCE and (index := next(self._wanted, None)) is not None:
            host = Host(index, self._number, self._keys, self._port)
            self._hosts[host.socket.fileno()] = host
            self._epoll.register(host.socket, select.EPOLLIN)
            self._greeting += 1

    def _hear(self, host: Host) -> None:
        met = host.met
        for kind, body in host.read():
            self._frames += 1
            self._bytes += len(body)
            if kind == kinds.REFUSED:
                raise SystemExit(f"refused: {body!r}")
            if kind != kinds.CALL or not decode(RollState, body).absent:
                self._heard[kind] += 1
                if kind == self._awaited:
                    self._look()
        if host.met and not met:
            self._greeting -= 1
            self._sent += 1
            # Spread over the second, as hosts that started at any time beat.
            due = time.monotonic() + (host.index % 997) / 997
            heapq.heappush(self._beats, (due, host.socket.fileno()))
            self._connect()

    def _say(self) -> None:
        """Answer: all hosts of this process have heard it."""
        known = {"at": time.monotonic(), "frames": self._frames, "sent": self._sent}
        print(json.dumps({**known, "bytes": self._bytes}), flush=True)
        self._frames = self._bytes = self._sent = 0

    def _look(self) -> None:
        """Answer when the last host has heard what is waited for."""
        if self._heard[self._awaited] == self._size:
            self._heard.clear()
            self._awaited = -1
            self._say()

    def _pause(self) -> float:
        return max(0.0, self._beats[0][0] - time.monotonic()) if self._beats else 1.0

    def _beat(self, now: float) -> None:
        while self._beats and self._beats[0][0] <= now:
            due, descriptor = self._beats[0]
            self._hosts[descriptor].send(kinds.BEAT)
            self._sent += 1
            heapq.heapreplace(self._beats, (due + 1.0, descriptor))

    def _obey(self, word: str) -> None:
        if word == "fail one":
            self._say_all(kinds.FAILED, kinds.VERDICT, list(self._hosts.values())[-1:])
        elif word == "listen":
            self._say_all(kinds.FAILED, kinds.VERDICT, [])
        elif word == "fail all":
            self._say_all(kinds.FAILED, kinds.VERDICT, list(self._hosts.values()))
        elif word == "come":
            self._attempt += 1
            self._say_all(kinds.CARD, kinds.CALL, list(self._hosts.values()))
        elif word == "progress":
            self._say_all(kinds.PROGRESS, kinds.PROGRESS, list(self._hosts.values()))
        elif word == "done":
            self._say_all(kinds.DONE, kinds.DONE, list(self._hosts.values()))
        elif word == "count":
            self._say()
        else:
            os._exit(0)  # its thousands of sockets are closed faster by the kernel

    def _say_all(self, kind: int, awaited: int, hosts: list[Host]) -> None:
        self._awaited = awaited
        for host in hosts:
            host.send(kind, self._body(kind, host))
            self._sent += 1
        self._look()  # another process of the simulation may have been faster

    def _body(self, kind: int, host: Host) -> bytes:
        if kind == kinds.CARD:
            return encode(card(host.index, self._number, self._attempt))
        if kind == kinds.FAILED:
            text = f"ValueError: host {host.index}\n{TRACEBACK}"
            return encode(
                HostFailure(rank=4 * host.index, text=text, kind="X", attempt=self._attempt)
            )
        return b""


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.disable()
    Hosts(*map(int, sys.argv[1:5])).run()


if __name__ == "__main__":
    main()
