"""Captures both streams of every replica: written to files, shown with a prefix, or not shown.

The prefix, such as the rank, stands before every line. A line is written when it is complete, so
that no two are mixed. Text with carriage returns is a progress bar: it is written at once and its
line stays open. On a terminal it stays the lowest line; elsewhere it ends when another stream
writes.

Imported only if ``log_dir``, ``prefix`` or ``show`` is given, or for a notebook.
"""

from __future__ import annotations

import os
import re

from xmp._processes.system.descriptors import move_above
from xmp._words.types import Output, ReplicaPlan

from .log_files import LogFile, logs, shows
from .streams import Outlets, Sink, Source, open_stream

__all__ = ["Capture", "PrefixedLines"]

_LONGEST = 64 * 1024
"""Bytes of the longest line that is held until it ends; longer ones are written in parts."""
_OPEN_BYTES = 4096
"""Bytes of an open line that are kept, to be written again."""
_UNIT = re.compile(rb"\r*[^\r\n]*(?:\r*\n)?")
_PORTION = 64 * 1024
_COLOURS = (36, 33, 32, 35, 34, 31)


class PrefixedLines:
    """One stream of one replica on its way to a sink."""

    def __init__(self, prefix: bytes, sink: Sink) -> None:
        self.sink = sink
        self.open_line = b""
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


class CapturedSource(Source):
    """One stream of one replica: copied to a sink, a log, both or neither."""

    def __init__(
        self,
        descriptor: int,
        writer: PrefixedLines | Sink | None,
        log: LogFile | None,
        errors: Sink,
    ) -> None:
        sink = writer.sink if isinstance(writer, PrefixedLines) else writer
        super().__init__(descriptor, sink)
        self._writer = writer
        self._log = log
        self._errors = errors
        self._shown = 0
        """The position in the log from which the rest is still to be shown, while ``behind``."""
        self._not_logged = b""
        """The bytes still to be shown that a full disk has kept out of the log."""

    @property
    def full(self) -> bool:
        """Whether it must not be read now. With a log never: text not shown yet is in the log."""
        if self._log is not None and self._log.failed is None:
            return False
        return self.behind or super().full

    @property
    def unread(self) -> bool:
        """Whether nothing reads what comes: the sink's reader has gone, and there is no log."""
        return self._log is None and super().unread

    def _take(self, data: bytes) -> None:
        start, logged = 0, 0
        if self._log is not None and self._log.failed is None:
            start = self._log.size
            logged = self._log.write(data)
            self._report_full_log()
        if self._writer is None:
            return
        if self.behind or (logged and super().full):
            self._shown = self._shown if self.behind else start
            self.behind, self._not_logged = True, self._not_logged + data[logged:]
        else:
            self._writer.put(data)

    def _report_full_log(self) -> None:
        if self._log is not None and self._log.failed is not None:
            line = f"xmp: {self._log.path} ends here: {self._log.failed.strerror}\n"
            self._errors.put_lines(line.encode())

    def catch_up(self) -> None:
        """Show a portion of the text that is only in the log so far."""
        if self.sink is None or self.sink.full or self._writer is None or self._log is None:
            return
        data = b"" if self.sink.broken else self._log.read(self._shown, _PORTION)
        self._shown += len(data)
        self.behind = bool(data) and (self._shown < self._log.size)
        if data:
            self._writer.put(data)
        if not self.behind and self._not_logged:
            rest, self._not_logged = self._not_logged, b""
            self._writer.put(rest)

    def finish(self) -> None:
        """End the last line: the replica has ended, and everything was shown."""
        if isinstance(self._writer, PrefixedLines):
            self._writer.finish()

    def close(self) -> None:
        super().close()
        if self._log is not None:
            self._log.close()


class Capture(Outlets):
    """The outlets of both streams of every replica, as the call's ``Output`` says."""

    def __init__(self, errors: Sink, output: Output, above: int, host: str = "") -> None:
        super().__init__(errors)
        self._output = output
        self._plain = errors
        self._host = output.host or host or os.uname().nodename
        if not os.path.sameopenfile(1, 2):
            self._plain = Sink(move_above(os.dup(1), above))
            self.sinks = [errors, self._plain]

    def open(self, plan: ReplicaPlan, above: int) -> tuple[list[Source], list[int]]:
        """Open a replica's streams. Return the sources to read and the replica's ends.

        Standard error comes first, then standard output.
        """
        if self._plain is self.errors and self._output.log_dir is None:
            # One stream for both keeps the order in which they were written.
            source, end = self._open_one(plan, self.errors, "stderr", above)
            return [source], [end, move_above(os.dup(end), above)]
        pairs = (
            self._open_one(plan, self.errors, "stderr", above),
            self._open_one(plan, self._plain, "stdout", above),
        )
        return [source for source, _ in pairs], [end for _, end in pairs]

    def _open_one(
        self, plan: ReplicaPlan, sink: Sink, stream: str, above: int
    ) -> tuple[Source, int]:
        output = self._output
        shown, prefix, log = shows(output, plan, stream), output.prefix, None
        text = output.prefix_of(plan, self._host) if prefix is not None else ""
        ours, theirs = open_stream(sink if shown else None, narrower=len(text))
        if logs(output, plan, stream):
            log = LogFile(output.log_file(plan, stream))
            log.descriptor = move_above(log.descriptor, above)
        writer = (
            PrefixedLines(_coloured(text, plan.rank, sink), sink) if prefix is not None else sink
        )
        source = CapturedSource(
            move_above(ours, above), writer if shown else None, log, self.errors
        )
        return source, move_above(theirs, above)


def _coloured(prefix: str, rank: int, sink: Sink) -> bytes:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if sink.terminal and prefix and not plain:
        prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
    return prefix.encode()
