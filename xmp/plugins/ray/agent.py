"""The driver's end of an agent that Ray reaches: two threads carry packets while a launch runs."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xmp._hosts.engines.clocks import HostClock
from xmp._processes.launcher.link import OverConnection
from xmp._processes.messages.connection import pair
from xmp._processes.system import linux

from . import files
from .answers import Connected, DisconnectedError
from .host_faults import first_line
from .relay import ENDED, OUTPUT, PACKET, STOPPED, received
from .streams import Streams

if TYPE_CHECKING:
    from xmp._processes.messages.hosts import StartHost

    from .sent_files import SentFiles

__all__ = ["RayAgent"]

_BEAT = 2.0
"""Seconds after which an actor answers although there is nothing to report."""
_BEAT_WHEN_FULL = 0.2
"""The same, where the driver's streams take no output: they may take some again by then."""
_SILENCE = 10
"""So many waits of a second, without an answer, after which a host is given up: with Ray itself
that takes 64 s where the network is cut (Ray 2.60), and 3 s where the raylet is killed. Of the time
for which this process is stopped (Ctrl-Z, a debugger) only one wait is lost."""


class RayAgent(OverConnection):
    """An agent, the actor that has started it, and a pair of sockets in this process.

    What is written to one end comes out at the agent, and back; the rest of xmp knows no other
    agents.
    """

    def __init__(self, actor: Any, index: int, name: str, address: str, pid: int) -> None:
        self.index, self.name, self.address, self.pid = index, name, address, pid
        self.actor = actor
        self._ray = Connected()
        self.clock = HostClock()
        self._sent: SentFiles | None = None
        self._connection, theirs = pair()
        self._relayed = socket.socket(fileno=theirs.detach())
        self._streams = Streams()
        self._items: deque[tuple[Any, ...]] = deque()
        """What the actor has reported and was not passed on yet, in its order."""
        self._how = ""
        self._asked = 0
        """The number of the last request for reports."""
        self._stopped = False
        self._runs = threading.Event()
        """Whether a launch runs: then the actor is asked for reports, one request at a time."""
        self._closed = False
        self._threads = [
            threading.Thread(target=work, name="xmp-ray", daemon=True)
            for work in (self._send_all, self._hear_all)
        ]
        for thread in self._threads:
            thread.start()

    # --- as any agent --------------------------------------------------------------------------

    def start(self, order: StartHost, image: Sequence[int], streams: Sequence[int]) -> None:
        self._streams.use(streams)
        self.hear()
        self._connection.send(order, list(image))

    def hear(self) -> None:
        """Ask the actor for reports from now on."""
        self._runs.set()

    def expect(self, kind: type[Any], timeout: float) -> Any:
        """The next message, of this kind; raises TimeoutError and Closed."""
        return self._connection.expect(kind, timeout)[0]

    def kill(self) -> None:
        import ray

        ray.kill(self.actor)

    def is_stopped(self) -> bool:
        return self._stopped

    def how_it_ended(self) -> str:
        return self._how or "has closed its connection"

    def rest(self) -> None:
        if self._runs.is_set():
            self._runs.clear()
            with contextlib.suppress(Exception):  # where the actor has ended, nothing waits
                self._ask("rested", "send", self._asked + 1)
        self._streams.close()

    def use(self, sent: SentFiles) -> None:
        """Where files are stored that go to several hosts."""
        self._sent = sent

    def end(self) -> None:
        """Close the channel; the actor ends with the group."""
        self._closed = True
        self._runs.set()
        self._hang_up()
        self._connection.close()
        self._streams.close()

    def _hang_up(self) -> None:
        """Nothing comes any more: both ends see it, also a thread that waits there."""
        with contextlib.suppress(OSError):
            self._relayed.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """In a forked child of the driver: no thread is here, and the parent uses the sockets."""
        self._connection.close()
        self._relayed.close()
        self._streams.close()

    # --- driver -> agent -----------------------------------------------------------------------

    def _send_all(self) -> None:
        try:
            while self._send_next():
                pass
        except Exception as error:  # of Ray, where the program has disconnected it
            self._how = self._how or f"cannot be reached: {first_line(error)}"
        self._hang_up()
        self._relayed.close()

    def _send_next(self) -> bool:
        packet = received(self._relayed)
        if packet is None:
            return False
        self._pass_on(*packet)
        return True

    def _pass_on(self, data: bytes, descriptors: Sequence[int]) -> None:
        assert self._sent is not None
        numbers = [self._sent.number(each) for each in descriptors]
        self._ask("take", "send", [(data, numbers)])

    # --- agent -> driver -----------------------------------------------------------------------

    def _ask(self, method: str, group: str, *args: Any) -> Any:
        self._ray.check()
        return getattr(self.actor, method).options(concurrency_group=group).remote(*args)

    def _hear_all(self) -> None:
        while True:
            self._runs.wait()
            if self._closed:
                return
            try:
                self._hear()
            except _Ended as ended:
                self._how = str(ended)
            except DisconnectedError as error:
                self._how = f"cannot be reached: {error}"
            except Exception as error:  # what ends this thread must end the launch
                self._how = f"cannot be heard any more: {first_line(error)}"
            else:
                continue
            while not (self._closed or self._deliver()):
                pass  # what it has written still goes out
            self._hang_up()
            return

    def _hear(self) -> None:
        wanted = self._deliver()
        self._asked += 1
        beat = _BEAT if wanted else _BEAT_WHEN_FULL
        items = self._answer(self._ask("reports", "hear", self._asked, beat, wanted))
        self._stopped = (STOPPED,) in items
        self._items += items
        self._deliver()

    def _answer(self, asked: Any) -> Any:
        import ray

        answer = asked.future()
        for _ in range(_SILENCE):
            try:
                return self._ray.answer(answer, 1.0)
            except TimeoutError:
                if self._closed:
                    break
            except ray.exceptions.RayActorError as error:
                raise _Ended(f"has ended with its actor: {first_line(error)}") from None
        raise _Ended(f"has not answered for {_SILENCE} s: its host or network is gone")

    def _deliver(self) -> bool:
        """Pass on what has come, in its order; False if the driver's streams take no more now."""
        while self._items:
            kind, *details = self._items[0]
            if kind == OUTPUT:
                number, data = details
                left = self._streams.write(number, data)
                if left:
                    self._items[0] = (OUTPUT, number, left)
                    return False
            self._items.popleft()
            if kind != OUTPUT:
                _HANDLERS[kind](self, *details)
        return True

    def _packet(self, data: bytes, sizes: Sequence[tuple[int, int]]) -> None:
        owned: list[int] = []
        try:
            for number, size in sizes:
                owned.append(self._fetched(number, size))
            socket.send_fds(self._relayed, [data], owned)
        finally:
            for descriptor in owned:
                os.close(descriptor)

    def _fetched(self, number: int, size: int) -> int:
        def ask(offset: int, count: int) -> Any:
            return self._ask("piece", "files", number, offset, count).future()

        descriptor = files.fetched(size, ask, self._look)
        linux.seal_size(descriptor)
        return descriptor

    def _look(self) -> None:
        """Raise where the actor does not answer any more."""
        self._answer(self._ask("is_stopped", "hear"))

    def _ended(self, how: str) -> None:
        raise _Ended(how)


class _Ended(Exception):
    """Nothing more comes from the agent; why."""


_HANDLERS: dict[str, Callable[..., None]] = {
    PACKET: RayAgent._packet,
    ENDED: RayAgent._ended,
    STOPPED: lambda _: None,
}
