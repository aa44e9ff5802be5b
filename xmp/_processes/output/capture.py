"""Both streams of every replica through the supervisor: into files, with their rank, or unseen.

Loaded only where ``log_dir``, ``prefix`` or ``show`` is given, or for a notebook.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from xmp._types import Output, ReplicaPlan

from . import kernel
from .lines import Lines
from .logs import Log
from .output import Outlets, Sink, Source, open_stream

__all__ = ["Capture", "Captured", "flush", "write_lines_at_once"]

_PORTION = 64 * 1024
_COLOURS = (36, 33, 32, 35, 34, 31)
_LINE_BUFFERED = 1  # _IOLBF
_libc: Any = ctypes.CDLL(None)
try:
    _c_stdout: Any = ctypes.c_void_p.in_dll(_libc, "stdout")
except ValueError:  # pragma: no cover - in other C libraries it may be no symbol
    _c_stdout = None


def write_lines_at_once(inherited: bool = False) -> None:
    """Let standard output pass whole lines on, C's too: what is killed has said what it had to.

    What C holds back is forgotten where it is ``inherited``: the launcher itself will say it.
    """
    reconfigure: Any = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)
    if _c_stdout is not None:
        _libc.setvbuf(_c_stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
    # glibc keeps to the new way only after a flush of what was there.
    if inherited:
        _into_nowhere(flush)
    else:
        flush()


def _into_nowhere(write: Callable[[], None]) -> None:
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    write()
    os.dup2(kept, 1)
    os.close(kept)
    os.close(nowhere)


def flush() -> None:
    """Say what C still holds back: a process that ends as ours do drops it."""
    if _c_stdout is not None:
        _libc.fflush(_c_stdout)  # and nothing else: files of the launcher's are its own to write


class Captured(Source):
    """One stream of one replica: copied to a sink, a log, both or neither."""

    def __init__(
        self, descriptor: int, lines: Lines | Sink | None, log: Log | None, errors: Sink
    ) -> None:
        sink = lines.sink if isinstance(lines, Lines) else lines
        super().__init__(descriptor, sink)
        self._lines = lines
        self._log = log
        self._errors = errors
        self._shown = 0
        self._rest = b""

    @property
    def full(self) -> bool:
        """With a log nobody has to wait: what is not shown yet is there."""
        if self._log is not None and self._log.failed is None:
            return False
        return self.behind or super().full

    def _take(self, data: bytes) -> None:
        start, logged = 0, 0
        if self._log is not None and self._log.failed is None:
            start = self._log.size
            logged = self._log.write(data)
            self._complain()
        if self._lines is None:
            return
        if self.behind or (logged and super().full):
            self._shown = self._shown if self.behind else start
            self.behind, self._rest = True, self._rest + data[logged:]
        else:
            self._lines.put(data)

    def _complain(self) -> None:
        if self._log is not None and self._log.failed is not None:
            line = f"xmp: {self._log.path} ends here: {self._log.failed.strerror}\n"
            self._errors.put_lines(line.encode())

    def catch_up(self) -> None:
        """Show a portion of what is in the log only."""
        if self.sink is None or self.sink.full or self._lines is None or self._log is None:
            return
        data = b"" if self.sink.broken else self._log.read(self._shown, _PORTION)
        self._shown += len(data)
        self.behind = bool(data) and (self._shown < self._log.size)
        if data:
            self._lines.put(data)
        if not self.behind and self._rest:
            rest, self._rest = self._rest, b""
            self._lines.put(rest)

    def finish(self) -> None:
        """Its replica has ended, and everything was shown."""
        if isinstance(self._lines, Lines):
            self._lines.finish()

    def close(self) -> None:
        """Close our ends."""
        super().close()
        if self._log is not None:
            self._log.close()


class Capture(Outlets):
    """Where both streams of every replica go, as the user has asked."""

    def __init__(self, errors: Sink, output: Output, above: int) -> None:
        super().__init__(errors)
        self._output = output
        self._plain = errors
        self._host = os.uname().nodename
        if not os.path.sameopenfile(1, 2):
            self._plain = Sink(kernel.move_above(os.dup(1), above))
            self.sinks = [errors, self._plain]

    def open(self, plan: ReplicaPlan, above: int) -> tuple[list[Source], list[int]]:
        """What to read of a replica and its own ends: standard error, then standard output."""
        if self._plain is self.errors and self._output.log_dir is None:
            # One stream for both keeps the order in which they were written.
            source, end = self._open_one(plan, self.errors, "stderr", above)
            return [source], [end, kernel.move_above(os.dup(end), above)]
        pairs = (
            self._open_one(plan, self.errors, "stderr", above),
            self._open_one(plan, self._plain, "stdout", above),
        )
        return [source for source, _ in pairs], [end for _, end in pairs]

    def _open_one(
        self, plan: ReplicaPlan, sink: Sink, stream: str, above: int
    ) -> tuple[Source, int]:
        output = self._output
        shown, prefix, log = output.shows(plan), output.prefix, None
        text = output.prefix_of(plan, self._host) if prefix is not None else ""
        ours, theirs = open_stream(sink if shown else None, narrower=len(text))
        if output.log_dir is not None:
            log = Log(output.log_file(plan, stream))
            log.descriptor = kernel.move_above(log.descriptor, above)
        lines = Lines(_coloured(text, plan.rank, sink), sink) if prefix is not None else sink
        source = Captured(
            kernel.move_above(ours, above), lines if shown else None, log, self.errors
        )
        return source, kernel.move_above(theirs, above)


def _coloured(prefix: str, rank: int, sink: Sink) -> bytes:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if sink.terminal and prefix and not plain:
        prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
    return prefix.encode()
