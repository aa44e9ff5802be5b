"""The streams of replicas (sources) and of the launcher (sinks): copied at once, last lines kept.

A slow reader of the launcher's stream must not stop the supervisor: a sink writes only what its
stream takes without waiting, and while a sink is full its sources are not read. So a replica that
writes too fast waits in its own ``write``.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
import termios
from collections import deque
from typing import Protocol

from xmp._processes.system import linux
from xmp._processes.system.descriptors import move_above
from xmp._words.types import ReplicaPlan

__all__ = ["Outlets", "Sink", "Source", "last_lines", "open_stream"]

_KEEP = 64 * 1024
_FULL = 1024 * 1024
_AT_ONCE = 4096  # PIPE_BUF: a pipe that polls writable takes so much without blocking (pipe(7))
_PORTION = 64 * 1024


class LineWriter(Protocol):
    """The writer of a line that is still open."""

    open_line: bytes
    """The line that it has begun and not ended, as a terminal shows it."""


class Sink:
    """One of the launcher's streams."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting: deque[bytes] = deque()
        """Data that the stream has not taken yet."""
        self._size = 0
        self.broken = False
        self.unread = False
        """Whether the stream's reader has gone."""
        self.is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        """Whether it is a regular file, which never blocks for long; epoll refuses to watch one."""
        self.terminal = os.isatty(descriptor)
        self.open_writer: LineWriter | None = None
        """The writer whose line is open at the end of the stream: mostly a progress bar."""

    @property
    def full(self) -> bool:
        """Whether the sink's sources must not be read for now."""
        return self._size > _FULL

    def put(self, data: bytes) -> None:
        """Queue data for the stream, and write what it takes now."""
        if not self.broken:
            self.waiting.append(data)
            self._size += len(data)
            self.flush()

    def put_lines(self, lines: bytes) -> None:
        """Copy whole lines: on a terminal an open line stays below them, elsewhere it ends here."""
        if self.open_writer is None:
            self.put(lines)
        elif self.terminal:
            self.put(b"\r\x1b[K" + lines + self.open_writer.open_line)
        else:
            self.open_writer.open_line, self.open_writer = b"", None
            self.put(b"\n" + lines)

    def flush(self) -> None:
        """Write what the stream takes without waiting."""
        while self.waiting and (self.is_file or linux.ready(self.descriptor, select.POLLOUT)):
            data = self.waiting.popleft()
            try:
                written = os.write(self.descriptor, data if self.is_file else data[:_AT_ONCE])
            except OSError as error:
                # The launcher's stream is gone (closed pipe, full disk): the tails are kept.
                self.broken, self._size = True, 0
                self.unread = isinstance(error, BrokenPipeError)
                self.waiting.clear()
                return
            self._size -= written
            if written < len(data):
                self.waiting.appendleft(data[written:])


def open_stream(sink: Sink | None, narrower: int = 0) -> tuple[int, int]:
    """Open a stream that goes to ``sink``, or is not shown. Return our end and the replica's.

    It is a pseudo-terminal if the launcher's stream is a terminal: programs colour their text and
    draw progress bars only on terminals. ``narrower`` is the number of columns by which it is
    narrower, for the prefix of lines.
    """
    if sink is None or not sink.terminal:
        return os.pipe()
    try:
        ours, theirs = os.openpty()
    except OSError:
        return os.pipe()  # the system has no pseudo-terminal left
    settings = termios.tcgetattr(theirs)
    settings[1] &= ~termios.OPOST  # the real terminal will translate the line ends
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    size = fcntl.ioctl(sink.descriptor, termios.TIOCGWINSZ, bytes(8))
    rows, columns, *pixels = struct.unpack("HHHH", size)
    size = struct.pack("HHHH", rows, max(columns - narrower, min(columns, 1)), *pixels)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs


def last_lines(text: str) -> str:
    """Return the last 50 lines as a terminal shows them: of a progress bar, its last state."""
    lines = text.rstrip("\n").split("\n")[-50:]
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


class Source:
    """One stream of one replica, copied to a sink unchanged."""

    behind = False
    """Whether something that was read is still to be shown."""

    def __init__(self, descriptor: int, sink: Sink | None) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.sink = sink
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self.ended = False
        """Whether the end of the stream was read."""

    @property
    def full(self) -> bool:
        """Whether the source must not be read for now."""
        return self.sink is not None and self.sink.full

    @property
    def unread(self) -> bool:
        """Whether the reader for which the source is copied has gone."""
        return self.sink is not None and self.sink.unread

    def copy(self) -> bool:
        """Copy one portion. Return False if nothing is there now, or the stream has ended."""
        try:
            data = os.read(self.descriptor, _PORTION)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # the end of a pseudo-terminal is EIO
        if data:
            self._take(data)
            self._tail.append(data)
            self._kept += len(data)
            while self._kept - len(self._tail[0]) >= _KEEP:
                self._kept -= len(self._tail.popleft())
        self.ended = not data
        return bool(data)

    def _take(self, data: bytes) -> None:
        if self.sink is not None:
            self.sink.put(data)

    def drain(self) -> None:
        """Copy what is there, without waiting for a grandchild that may still write."""
        for _ in range(1024):
            if not self.copy():
                return

    def catch_up(self) -> None:
        """Show a portion of the text that was read and not shown; here there is none."""

    def finish(self) -> None:
        """End the last line after the replica's end; here nothing is left to do."""

    def forget(self) -> None:
        """Forget the last lines: they are of an earlier call."""
        self._tail.clear()
        self._kept = 0

    def tail(self) -> str:
        return last_lines(self.kept())

    def kept(self) -> str:
        """Return the last 64 KiB that passed."""
        return b"".join(self._tail)[-_KEEP:].decode(errors="replace")

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Outlets:
    """The outlets of each replica's streams: only standard error passes through the supervisor."""

    def __init__(self, errors: Sink) -> None:
        self.errors = errors
        self.sinks = [errors]
        """All streams that are written to, each once."""

    def open(self, plan: ReplicaPlan, above: int) -> tuple[list[Source], list[int]]:
        """Open a replica's captured streams. Return the sources to read and the replica's ends.

        Standard error comes first, then standard output if it is captured.
        """
        ours, theirs = open_stream(self.errors)
        source = Source(move_above(ours, above), self.errors)
        return [source], [move_above(theirs, above)]
