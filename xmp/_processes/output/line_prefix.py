"""A prefix, such as the rank, before every line of a replica, with readable progress bars.

A line is written when it is complete, so that no two are mixed. Text with carriage returns is a
progress bar: it is written at once and its line stays open. On a terminal it stays the lowest line;
elsewhere it ends when another stream writes.
"""

from __future__ import annotations

import re

from .streams import Sink

__all__ = ["PrefixedLines"]

_LONGEST = 64 * 1024
"""Bytes of the longest line that is held until it ends; longer ones are written in parts."""
_OPEN_BYTES = 4096
"""Bytes of an open line that are kept, to be written again."""
_UNIT = re.compile(rb"\r*[^\r\n]*(?:\r*\n)?")


class PrefixedLines:
    """One stream of one replica on its way to a sink."""

    def __init__(self, prefix: bytes, sink: Sink) -> None:
        self.sink = sink
        self.open_line = b""
        """The line that this stream has begun and not ended, as a terminal shows it."""
        self._prefix = prefix
        self._held = b""

    def put(self, data: bytes) -> None:
        """Take some bytes; write complete lines and progress bars."""
        data, self._held = self._held + data, b""
        if b"\r" in data or self.sink.open_writer is self or self.open_line:
            self._put_units(data)
            return
        whole, newline, self._held = data.rpartition(b"\n")  # the fast path, for much output
        if newline:
            text = whole.replace(b"\n", b"\n" + self._prefix)
            self.sink.put_lines(self._prefix + text + newline)
        if len(self._held) > _LONGEST:
            held, self._held = self._held, b""
            self._begin_line(held)

    def _put_units(self, data: bytes) -> None:
        """Take lines, and parts delimited by carriage returns, one by one."""
        end = len(data)
        for found in _UNIT.finditer(data):
            unit = found.group()
            whole, text = unit.endswith(b"\n"), unit.lstrip(b"\r")
            open_one = found.end() < end or unit[:1] == b"\r" or len(unit) > _LONGEST
            if whole:
                self._put_line(unit, text)
            elif text and self.sink.open_writer is self and text == unit:
                self.open_line = (self.open_line + text)[:_OPEN_BYTES]
                self.sink.put(text)
            elif text and open_one:
                self._begin_line(unit)
            else:
                self._held += unit  # an incomplete line, or only carriage returns: wait for more

    def _put_line(self, unit: bytes, text: bytes) -> None:
        mine, lost = self.sink.open_writer is self, self.open_line
        if mine:
            self.sink.open_writer = None
        self.open_line = b""
        if mine and text in (unit, b"\n"):
            self.sink.put(unit)  # the end of the open line
        elif mine:
            self.sink.put(self._with_prefix(unit))
        elif lost and text == b"\n" and self.sink.terminal:
            self.sink.put_lines(lost + text)  # another stream's open line has taken its place
        else:
            self.sink.put_lines(self._with_prefix(unit))

    def _begin_line(self, unit: bytes) -> None:
        """Begin a line that stays open, in the place of another stream's open line."""
        sink, shown = self.sink, self._with_prefix(unit)
        if sink.open_writer is not None and sink.open_writer is not self:
            shown = (b"\r\x1b[K" if sink.terminal else b"\n") + shown
            sink.open_writer.open_line = sink.open_writer.open_line if sink.terminal else b""
        sink.open_writer = self
        self.open_line = (self._prefix + unit.lstrip(b"\r"))[:_OPEN_BYTES]
        sink.put(shown)

    def _with_prefix(self, unit: bytes) -> bytes:
        text = unit.lstrip(b"\r")
        return unit[: len(unit) - len(text)] + self._prefix + text

    def finish(self) -> None:
        """Write the unfinished rest of a replica that has ended, and end its line."""
        held, self._held = self._held.strip(b"\r"), b""
        if held or self.open_line:
            self._put_line(held + b"\n", held + b"\n")
