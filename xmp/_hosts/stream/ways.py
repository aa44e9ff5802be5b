"""The two ways to a host: the standard streams of a command, and a TCP connection.

What a command writes before the stream's first word (a banner, what a profile prints) goes to the
debug log. Its standard error is kept for errors until the host has answered, and from then on goes
where the driver's goes.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from xmp._os import log
from xmp._processes.messages.connection import Closed, prepared
from xmp._processes.messages.hosts import HostReached
from xmp._processes.system import linux, processes

from .bridge import Bridge
from .frames import SECRET, FrameReader, FrameWriter, StreamBroken, seals
from .tcp import Callers, Met, Secret, dialled, in_words

__all__ = [
    "Command", "Connection", "DriverGone", "Unreached", "order_of_command", "order_of_connection",
    "printable",
]  # fmt: skip

_KEPT = 20
"""Lines of the command's standard error that an error may need."""
_END_WAIT = 2.0
_DIAL = 5.0
_ROOM = 64 * 1024
_BANNER = 1 << 20
"""The most that a command may write before the stream."""


class DriverGone(Exception):
    """The driver has closed its socket before there was a stream."""


class Unreached(Exception):
    """The host cannot be reached; why."""


def order_of_command(command: list[str], mark: bytes, secret: str) -> bytes:
    """Return the order for ``near``. ``secret``: "" for a stream that is not sealed."""
    return json.dumps({"command": command, "mark": mark.hex(), "secret": secret}).encode()


def order_of_connection(secret: Secret) -> bytes:
    """Return the order for ``near``, with which a listener may go."""
    return json.dumps({"secret": secret}).encode()


class Command:
    """A command that is started, and the stream on its standard input and output."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._command, self._secret = given["command"], given["secret"]
        self._mark, self._name = bytes.fromhex(given["mark"]), given["command"][0]
        self._said: deque[str] = deque(maxlen=_KEPT)
        """The last lines of the command's standard error."""
        self.reached = False
        """Whether the host has answered."""
        self._process: subprocess.Popen[bytes] | None = None

    def open(self, bridge: Bridge) -> None:
        """Start the command, and give the bridge its stream. Raise Unreached, DriverGone."""
        env = {**os.environ, SECRET: self._secret} if self._secret else None
        try:
            process = self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env=env, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise Unreached(f"{self._name} cannot be started: {error.strerror}") from None
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()
        assert process.stdin is not None
        assert process.stdout is not None
        source, sink = process.stdout.fileno(), process.stdin.fileno()
        ours, theirs = seals(self._secret, self._mark.hex())
        reader = FrameReader(source, bridge.room, theirs, first_plain=True)
        reader.early = self._find_mark(source, bridge.local)
        bridge.use(reader, FrameWriter(sink, ours), source, sink)

    def _find_mark(self, source: int, local: socket.socket) -> bytes:
        """Read up to the first word of the stream; return what has come after it.

        Raise Closed, DriverGone, StreamBroken.
        """
        found = b""
        poller = select.poll()
        poller.register(source, select.POLLIN)
        poller.register(local, select.POLLIN)
        while self._mark not in found:
            ready = {each for each, _ in poller.poll()}
            if source not in ready:
                raise DriverGone
            piece = os.read(source, _ROOM)
            if not piece:
                raise Closed("end of the stream")
            found += piece
            if len(found) > _BANNER:
                raise StreamBroken(
                    f"more than {_BANNER} bytes before it, from a profile or a banner"
                )
        before, _, after = found.partition(self._mark)
        self._note(before)
        return after

    def _note(self, printed: bytes) -> None:
        for line in printed.decode(errors="replace").splitlines():
            log.debug("%s printed before the stream: %s", self._name, line, process="link")

    def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for data in self._process.stderr:
            if self.reached:
                _write(2, data)
            else:
                self._said.append(data.decode(errors="replace").rstrip())

    def lost(self) -> str:
        """Say how the command has ended, in its own words too."""
        assert self._process is not None
        code: int | None = None
        try:
            code = self._process.wait(_END_WAIT)
            self._errors.join(_END_WAIT)
        except subprocess.TimeoutExpired:
            pass
        name = os.path.basename(self._name)
        how = f"{name} ended with exit code {code}"
        if code is None:
            how = f"{name} has closed the stream"
        elif code < 0:
            how = f"{name} was killed by {processes.signal_name(-code)}"
        if code in (126, 127) and not self.reached:  # of a shell: sh(1)
            how += ": there is no such interpreter (python=)"
        if code == 0 and not self.reached:
            how += ", and nothing of xmp has run there: is python= an interpreter?"
        lines = [printable(line) for line in self._said if line]
        lost = "has lost its connection" if self.reached else "was not reached"
        return f"{lost}: {how}" + (f" ({'; '.join(lines[-3:])})" if lines else "")

    def end(self) -> None:
        """End the command: its host sees the end of its standard input."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(_END_WAIT if self.reached else 0)
            except subprocess.TimeoutExpired:
                self._process.kill()


class Connection:
    """A TCP connection: the host makes it, or this process, where the driver says so."""

    reached = False

    def __init__(self, given: Mapping[str, Any], files: Sequence[int]) -> None:
        """``files``: a listener, if there is one."""
        self._secret = Secret(*given["secret"])
        self._listener = socket.socket(fileno=files[0]) if files else None
        self._met: Met | None = None

    def open(self, bridge: Bridge) -> None:
        """Meet the host, and give the bridge the stream. Raise Unreached, DriverGone."""
        local, found = bridge.local, None
        if self._listener is not None:
            found = Callers(self._listener, self._secret).met(local.fileno())
        met = self._met = found or self._dialled(local)
        number = met.socket.fileno()
        reader = FrameReader(number, bridge.room, met.theirs)
        bridge.use(reader, FrameWriter(number, met.ours), number, number)
        bridge.deliver(prepared(HostReached(json.dumps({"connected": True}))))

    def _dialled(self, local: socket.socket) -> Met:
        """Connect to where the driver's next packet says that the host listens."""
        linux.ready(local.fileno(), select.POLLIN, None)
        try:
            data = local.recv(_ROOM)
        except OSError:
            data = b""
        if not data:
            raise DriverGone
        given = json.loads(data)
        if not given["port"]:
            raise Unreached(f"it cannot listen there: {given['why']}")
        try:
            return dialled(given["address"], given["port"], self._secret, _DIAL)
        except OSError as error:
            raise Unreached(in_words(error)) from None

    def lost(self) -> str:
        """Say that the connection has ended."""
        return "has lost its connection: xmp-host or its host has ended"

    def end(self) -> None:
        """Close the connection: its host sees the end."""
        if self._met is not None:
            self._met.socket.close()


def printable(text: str) -> str:
    """Return the text without what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _write(descriptor: int, data: bytes) -> None:
    try:
        os.write(descriptor, data)
    except OSError:
        pass  # nothing reads it
