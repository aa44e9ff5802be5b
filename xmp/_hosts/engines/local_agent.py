"""An agent of the ``local`` engine, as its driver has it: a child, and a pair of sockets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xmp._processes.launcher.link import OverConnection
from xmp._processes.messages.connection import pair
from xmp._processes.system import interpreter, processes, stdio
from xmp._processes.system.descriptors import Held

from .clocks import HostClock

if TYPE_CHECKING:
    from xmp._processes.messages.hosts import StartHost

__all__ = ["LocalAgent"]

_END_WAIT = 5.0


class LocalAgent(OverConnection):
    """An agent, this process's child, and one end of a pair of sockets that it has inherited."""

    module = "xmp._hosts.engines.agent"
    function = "main"
    """What the child runs."""

    def __init__(self, index: int, address: str, env: Mapping[str, str]) -> None:
        """Start the process. Raise OSError if it cannot be started."""
        self.index, self.name, self.address = index, address, address
        self.clock = HostClock()
        self._runs = False
        """Whether it has been sent the order of a launch that is not over."""
        self._connection, theirs = pair()
        self._connection.hold()
        watched, lifeline = os.pipe()
        self._lifeline = Held(lifeline)
        numbers = theirs.fileno(), watched
        command = interpreter.fresh_interpreter(self.module, self.function, *numbers)
        streams = stdio.standard_streams()  # this process may have closed its own
        try:
            self._process = subprocess.Popen(
                command, stdin=streams[0], stdout=streams[1], stderr=streams[2],
                pass_fds=numbers, env=dict(env), start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._connection.close()
            self._lifeline.close()
            raise
        finally:
            theirs.close()
            for descriptor in (watched, *streams):
                os.close(descriptor)
        self.pid = self._process.pid

    def start(self, order: StartHost, image: Sequence[int], streams: Sequence[int]) -> None:
        self._runs = True
        try:
            self._connection.send(order, [*image, *streams])
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def detach(self) -> int:
        """Give the socket to the caller, who alone may use it from now on."""
        return self._connection.detach()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def is_stopped(self) -> bool:
        return processes.is_stopped(self.pid)

    def how_it_ended(self) -> str:
        code = self._ended()
        if code is None:
            return "has closed its connection"
        return (
            f"was killed by {processes.signal_name(-code)}"
            if code < 0
            else f"ended with exit code {code}"
        )

    def _ended(self) -> int | None:
        try:
            return self._process.wait(_END_WAIT)
        except subprocess.TimeoutExpired:
            return None

    def rest(self) -> None:
        self._runs = False

    def end(self) -> None:
        """End it: at once, if it runs a launch; what it has started ends by its lifelines."""
        self._connection.close()
        if self._runs or self.is_stopped() or self._ended() is None:
            self.kill()
            self._process.wait()
        self._lifeline.close()  # the kernel kills an agent that still runs, or is stopped
        self.rest()

    def drop(self) -> None:
        self._connection.close()
        self._lifeline.close()
        self._process.returncode = 0  # the child of another process: this one must not wait
