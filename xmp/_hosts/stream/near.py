"""The process at the driver's end of a stream (xmp-link): it reaches one host, and carries.

It starts the command that the driver has ordered, or meets the host over TCP (``ways``).
"""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import NoReturn

from xmp._processes.messages.connection import Closed, prepared
from xmp._processes.messages.hosts import HostGone, HostReached, HostStopped
from xmp._processes.system import linux

from .boot import FACTS
from .bridge import SILENCE, Bridge
from .frames import BEAT, ENDED, HELLO, StreamBroken
from .ways import Command, Connection, DriverGone, Unreached, printable

__all__ = ["main"]

_FILES = 16
"""Room for those that come, and for the credentials of their sender (SO_PASSCRED, unix(7))."""


def main(descriptor: int, lifeline: int) -> None:
    """Serve the driver at the other end of this socket; end with it, also while stopped."""
    for each in (descriptor, lifeline):
        os.set_inheritable(each, False)
    linux.arm(lifeline)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored no exit code is known
    linux.set_name("xmp-link")
    local = socket.socket(fileno=descriptor)
    _, files, _, _ = socket.recv_fds(local, 1, _FILES, socket.MSG_CMSG_CLOEXEC)
    if not files:
        return  # the driver has ended
    with open(files[0]) as file:
        file.seek(0)
        given = json.load(file)
    way = Command(given) if "command" in given else Connection(given, files[1:])
    link = _Link(local, way)
    link.serve()


class _Link:
    """The stream to one host, and what the host says of itself."""

    def __init__(self, local: socket.socket, way: Command | Connection) -> None:
        self._way, self._stopped = way, False
        self._bridge = Bridge(local, lambda: b"")
        self._bridge.on(HELLO, self._hello)
        self._bridge.on(BEAT, self._beat)
        self._bridge.on(ENDED, self._ended)

    def serve(self) -> NoReturn:
        """Carry until the driver or the host has ended."""
        bridge, way = self._bridge, self._way
        try:
            way.open(bridge)
            while not bridge.local_over:
                bridge.turn()
        except StreamBroken as error:
            self._gone(f"sent what is no stream of xmp: {error}")
        except TimeoutError:
            self._gone(f"has not answered for {SILENCE:g} s: its host or network is gone")
        except Unreached as error:
            self._gone(str(error))
        except Closed:
            self._gone(way.lost())
        except DriverGone:
            pass
        self._end()

    def _hello(self, body: memoryview) -> None:
        try:
            found = json.loads(bytes(body))
            facts = {name: printable(found[name]) for name in FACTS}
        except (ValueError, KeyError, TypeError):
            raise StreamBroken("its first word is none of xmp") from None
        self._way.reached = True
        self._bridge.deliver(prepared(HostReached(json.dumps(facts))))

    def _beat(self, body: memoryview) -> None:
        stopped = bool(body[0])
        if stopped != self._stopped:
            self._stopped = stopped
            self._bridge.deliver(prepared(HostStopped(stopped)))

    def _ended(self, body: memoryview) -> None:
        """Say how the agent has ended; another one may answer what is asked from now on."""
        self._bridge.deliver(prepared(HostGone(bytes(body).decode(errors="replace"))))

    def _gone(self, text: str) -> NoReturn:
        self._bridge.deliver(prepared(HostGone(text)))
        self._way.end()
        self._bridge.finish_local()
        os._exit(0)

    def _end(self) -> NoReturn:
        self._way.end()
        os._exit(0)
