"""What the replicas of all hosts write, on its way to the driver's streams, in whole lines.

Each host has a pipe for each stream (on a terminal, a pseudo-terminal). A thread of the driver
reads them while its own streams take more: neither a slow reader nor a flood fills its memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from xmp._processes.messages.cell_frames import FrameReader, frame
from xmp._processes.messages.replica import ShowInCell
from xmp._processes.output.capture import PrefixedLines
from xmp._processes.output.event_loop import EventLoop, OutputPump
from xmp._processes.output.streams import Sink, Source, open_stream
from xmp._processes.system import stdio

__all__ = ["HostsOutput"]

_PIECE = 64 * 1024
"""A sink copies what is left of a piece each time it has written some of it."""
_PATIENCE = 5.0


class HostsOutput:
    """Both streams of each host of one launch."""

    def __init__(self, hosts: int, cell: bytes) -> None:
        """``cell``: in a notebook, the mark before each display in standard output."""
        self._cell = None
        owned = stdio.standard_streams()
        if cell:
            from xmp._processes.terminal.notebook_output import CellOutput

            self._cell = CellOutput(cell)
            for number, end in enumerate(self._cell.ends(), 1):
                os.close(owned[number])
                owned[number] = end
        os.close(owned[0])
        self._owned = owned[1:]
        together = os.path.sameopenfile(*self._owned)  # one stream keeps the order of both
        plain = Sink(self._owned[0])
        sinks = [plain] if together else [plain, Sink(self._owned[1])]
        self._loop = EventLoop()
        self._pump = OutputPump(self._loop, sinks)
        self._ends: list[list[int]] = []
        self._sources: list[_HostStream] = []
        for _ in range(hosts):
            self._open(sinks, cell, whole_lines=hosts > 1)
        self._end_read, self._end_write = os.pipe()
        self._written_read, self._written_write = os.pipe()
        self._over = self._given_up = False
        self._loop.listen(self._end_read, self._hosts_have_ended)
        self._thread = threading.Thread(target=self._run, name="xmp-output", daemon=True)
        self._thread.start()

    def _open(self, sinks: list[Sink], cell: bytes, whole_lines: bool) -> None:
        ends = []
        for sink in sinks:
            ours, theirs = open_stream(sink)
            mark = cell if sink is sinks[0] else b""
            source = _HostStream(ours, sink, whole_lines, mark)
            self._sources.append(source)
            self._pump.add(source)
            ends.append(theirs)
        self._ends.append(ends if len(ends) > 1 else [ends[0], os.dup(ends[0])])

    # --- the driver's threads ------------------------------------------------------------------

    def streams(self, index: int) -> list[int]:
        """Return standard input, output and error of a host; the receiver closes them."""
        ends, self._ends[index] = self._ends[index], []
        return [os.open(os.devnull, os.O_RDWR), *ends]

    def over(self) -> None:
        """Note that the hosts have ended: what they have written is all that comes."""
        if self._end_write >= 0:
            os.close(self._end_write)
            self._end_write = -1

    def give_up(self) -> None:
        """Nothing reads the driver's streams: what they have not taken is lost."""
        self._given_up = True
        self.over()

    def fileno(self) -> int:
        """Readable as soon as everything has been written, after ``over``."""
        return self._written_read

    def close(self) -> None:
        """Write what is there, for some seconds, and end the thread."""
        if self._written_read < 0:
            return
        self.over()
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self.give_up()
            self._thread.join()
        self._close_all()
        if self._cell is not None:
            self._cell.finish()

    def drop(self) -> None:
        """In a forked child of the driver, which has not the thread."""
        if self._written_read >= 0:
            self._close_all()
            self._close((self._end_write, self._written_write))
            self._end_write = self._written_write = -1

    def _close_all(self) -> None:
        self._loop.close()
        for source in self._sources:
            source.close()
        unused = [end for ends in self._ends for end in ends]
        self._close((*self._owned, *unused, self._end_read, self._written_read))
        self._ends, self._written_read = [], -1

    def _close(self, descriptors: Iterable[int]) -> None:
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._given_up and (not self._over or self._pump.waiting):
            self._loop.turn(_PATIENCE if self._over else None)
            self._pump.write_out()
        os.close(self._written_write)
        self._written_write = -1

    def _hosts_have_ended(self) -> None:
        self._over = True
        self._loop.forget(self._end_read)
        for source in self._sources:
            self._pump.end(source)


class _HostStream(Source):
    """One stream of one host, of which other hosts' output goes between whole lines only."""

    def __init__(self, descriptor: int, sink: Sink, whole_lines: bool, mark: bytes) -> None:
        super().__init__(descriptor, sink)
        self._to: Sink = sink
        self._lines = PrefixedLines(b"", sink) if whole_lines else None
        self._frames = FrameReader(mark) if mark and whole_lines else None
        self._mark = mark

    def _take(self, data: bytes) -> None:
        for piece in (data,) if self._frames is None else self._frames.feed(data):
            if isinstance(piece, ShowInCell):
                self._display(piece)
            elif self._lines is not None:
                self._lines.put(piece)
            else:
                self._to.put(piece)

    def _display(self, message: ShowInCell) -> None:
        if self._lines is not None:
            self._lines.finish()  # what was written before it
        data = frame(self._mark, message)
        for start in range(0, len(data), _PIECE):
            self._to.put(data[start : start + _PIECE])

    def finish(self) -> None:
        if self._frames is not None:
            self._take(b"")
        if self._lines is not None:
            self._lines.finish()
