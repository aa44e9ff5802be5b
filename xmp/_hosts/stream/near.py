"""The process at the driver's end of a stream (xmp-link): it starts the command for one host.

What the command writes before the stream's first word (a banner, what a profile prints) goes to the
debug log. The command's standard error is kept for errors until the host has answered, and from
then on goes where the driver's goes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
from collections import deque
from typing import NoReturn

from xmp._os import log
from xmp._processes.messages.connection import Closed, prepared
from xmp._processes.messages.hosts import HostGone, HostReached, HostStopped
from xmp._processes.system import linux, processes

from .bridge import SILENCE, Bridge
from .frames import BEAT, ENDED, HELLO, SECRET, FrameReader, FrameWriter, StreamBroken, seals

__all__ = ["main", "order"]

_KEPT = 20
"""Lines of the command's standard error that an error may need."""
_END_WAIT = 2.0
_ROOM = 64 * 1024
_BANNER = 1 << 20
_FILES = 16
"""Room for the one that comes, and for the credentials of its sender (SO_PASSCRED)."""


def order(command: list[str], mark: bytes, secret: str) -> int:
    """Return a file for this process's first packet; ``secret``: "" if the stream is not sealed."""
    descriptor = linux.memory_file("xmp-link")
    with open(os.dup(descriptor), "w") as file:
        json.dump({"command": command, "mark": mark.hex(), "secret": secret}, file)
    return descriptor


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
    link = _Link(local, given["command"], bytes.fromhex(given["mark"]), given["secret"])
    link.serve()


class _Link:
    """The command of one host, and the stream to it."""

    def __init__(self, local: socket.socket, command: list[str], mark: bytes, secret: str) -> None:
        self._mark, self._name = mark, command[0]
        self._said: deque[str] = deque(maxlen=_KEPT)
        """The last lines of the command's standard error."""
        self._reached = self._stopped = False
        self._how = ""
        """How the agent has ended, once the host has said so."""
        self._process: subprocess.Popen[bytes] | None = None
        self._bridge = Bridge(local, lambda: b"")
        self._bridge.on(HELLO, self._hello)
        self._bridge.on(BEAT, self._beat)
        self._bridge.on(ENDED, self._ended)
        env = {**os.environ, SECRET: secret} if secret else None
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=env, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            self._gone(f"{self._name} cannot be started: {error.strerror}")
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()
        self._seals = seals(secret, mark.hex())

    # --- the stream ----------------------------------------------------------------------------

    def serve(self) -> NoReturn:
        """Carry until the driver or the host has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        source, sink = self._process.stdout.fileno(), self._process.stdin.fileno()
        bridge, (ours, theirs) = self._bridge, self._seals
        reader = FrameReader(source, bridge.room, theirs, first_plain=True)
        try:
            reader.early = self._find_mark(source)
            bridge.use(reader, FrameWriter(sink, ours), source, sink)
            while not bridge.local_over:
                bridge.turn()
        except StreamBroken as error:
            self._gone(f"sent what is no stream of xmp: {error}")
        except TimeoutError:
            self._gone(f"has not answered for {SILENCE:g} s: its host or network is gone")
        except Closed:
            self._gone(self._how or self._lost())
        self._end()

    def _find_mark(self, source: int) -> bytes:
        """Read up to the first word of the stream; return what has come after it. Raise Closed."""
        found = b""
        poller = select.poll()
        poller.register(source, select.POLLIN)
        poller.register(self._bridge.local, select.POLLIN)
        while self._mark not in found:
            ready = {each for each, _ in poller.poll()}
            if source not in ready:
                self._end()  # the driver waits no more
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

    def _hello(self, body: memoryview) -> None:
        self._reached = True
        self._bridge.deliver(prepared(HostReached(bytes(body).decode())))

    def _beat(self, body: memoryview) -> None:
        stopped = bool(body[0])
        if stopped != self._stopped:
            self._stopped = stopped
            self._bridge.deliver(prepared(HostStopped(stopped)))

    def _ended(self, body: memoryview) -> None:
        self._how = bytes(body).decode(errors="replace")

    # --- its end -------------------------------------------------------------------------------

    def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for data in self._process.stderr:
            if self._reached:
                _write(2, data)
            else:
                self._said.append(data.decode(errors="replace").rstrip())

    def _lost(self) -> str:
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
        if code in (126, 127) and not self._reached:  # of a shell: sh(1)
            how += ": there is no such interpreter (python=)"
        lines = [
            "".join(c if c.isprintable() else "?" for c in line) for line in self._said if line
        ]
        lost = "has lost its connection" if self._reached else "was not reached"
        return f"{lost}: {how}" + (f" ({'; '.join(lines[-3:])})" if lines else "")

    def _gone(self, text: str) -> NoReturn:
        self._bridge.deliver(prepared(HostGone(text)))
        self._end_command()
        self._bridge.finish_local()
        os._exit(0)

    def _end(self) -> NoReturn:
        self._end_command()
        os._exit(0)

    def _end_command(self) -> None:
        """End the command: its host sees the end of its standard input."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_WAIT if self._reached else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _write(descriptor: int, data: bytes) -> None:
    try:
        os.write(descriptor, data)
    except OSError:
        pass  # nothing reads it
