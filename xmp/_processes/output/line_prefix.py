"""What a replica writes, line by line with its rank before it, and progress bars readable.

A line goes out when it is complete, so that no two are mixed. What is drawn with carriage returns
is a progress bar: it goes out at once and its line stays open. On a terminal it stays the lowest
line; elsewhere it ends when somebody else writes.
"""

from __future__ import annotations

import re

from .output import Sink

__all__ = ["Lines"]

_LONGEST = 64 * 1024
"""Bytes of a line that are waited for; longer ones go out in parts."""
_DRAWN = 4096
"""Bytes of an open line that can be drawn again."""
_UNIT = re.compile(rb"\r*[^\r\n]*(?:\r*\n)?")


class Lines:
    """One stream of one replica on its way to a sink."""

    def __init__(self, prefix: bytes, sink: Sink) -> None:
        self.sink = sink
        self.drawn = b""
        """Its open line, as a terminal shows it."""
        self._prefix = prefix
        self._held = b""

    def put(self, data: bytes) -> None:
        """Take some bytes; complete lines and progress bars go out."""
        data, self._held = self._held + data, b""
        if b"\r" in data or self.sink.bar is self or self.drawn:
            self._put_units(data)
            return
        whole, newline, self._held = data.rpartition(b"\n")  # fast, for those who write much
        if newline:
            text = whole.replace(b"\n", b"\n" + self._prefix)
            self.sink.put_lines(self._prefix + text + newline)
        if len(self._held) > _LONGEST:
            held, self._held = self._held, b""
            self._begin(held)

    def _put_units(self, data: bytes) -> None:
        """One by one: lines, and parts that a carriage return begins or ends."""
        end = len(data)
        for found in _UNIT.finditer(data):
            unit = found.group()
            whole, text = unit.endswith(b"\n"), unit.lstrip(b"\r")
            open_one = found.end() < end or unit[:1] == b"\r" or len(unit) > _LONGEST
            if whole:
                self._put_line(unit, text)
            elif text and self.sink.bar is self and text == unit:
                self._go_on(text)
            elif text and open_one:
                self._begin(unit)
            else:
                self._held += unit  # the end of a line, or only carriage returns: what follows?

    def _put_line(self, unit: bytes, text: bytes) -> None:
        mine, lost = self.sink.bar is self, self.drawn
        if mine:
            self.sink.bar = None
        self.drawn = b""
        if mine and text in (unit, b"\n"):
            self.sink.put(unit)  # the end of the open line
        elif mine:
            self.sink.put(self._with_prefix(unit))
        elif lost and text == b"\n" and self.sink.terminal:
            self.sink.put_lines(lost + text)  # another's bar has taken its place meanwhile
        else:
            self.sink.put_lines(self._with_prefix(unit))

    def _begin(self, unit: bytes) -> None:
        """Draw a line that stays open; another's, that was open, gives way."""
        sink, shown = self.sink, self._with_prefix(unit)
        if sink.bar is not None and sink.bar is not self:
            shown = (b"\r\x1b[K" if sink.terminal else b"\n") + shown
            sink.bar.drawn = sink.bar.drawn if sink.terminal else b""
        sink.bar = self
        self.drawn = (self._prefix + unit.lstrip(b"\r"))[:_DRAWN]
        sink.put(shown)

    def _go_on(self, text: bytes) -> None:
        self.drawn = (self.drawn + text)[:_DRAWN]
        self.sink.put(text)

    def _with_prefix(self, unit: bytes) -> bytes:
        text = unit.lstrip(b"\r")
        return unit[: len(unit) - len(text)] + self._prefix + text

    def finish(self) -> None:
        """The replica has ended: what it left unfinished goes out, and its line ends."""
        held, self._held = self._held.strip(b"\r"), b""
        if held or self.drawn:
            self._put_line(held + b"\n", held + b"\n")
