"""Lines at the bottom of a terminal, below whatever this process and others write meanwhile.

Replicas write to the terminal themselves, at any moment, and nobody can see what they wrote: lines
that are drawn over would take theirs along. So the rest of the terminal becomes its scrolling
region, as apt does it; each drawing is one write, which the kernel does not mix with another.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

__all__ = ["RESTORE", "Screen", "suits"]

RESTORE = b"\x1b7\x1b[r\x1b8"
"""Makes the whole terminal scroll again; the cursor stays where it is."""
_LEAST_ROWS = 6


def suits(descriptor: int) -> bool:
    """Whether this is a terminal, with room, of which this process has the foreground."""
    try:
        size = os.get_terminal_size(descriptor)
        ours = os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
    return ours and size.lines >= _LEAST_ROWS and os.environ.get("TERM") not in (None, "", "dumb")


class Screen:
    """The terminal behind a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rows = 0
        self._size = os.get_terminal_size(descriptor)
        self._stopped = False

    @property
    def width(self) -> int:
        """Columns that a line may have; the last one would make some terminals begin a new row."""
        return max(20, os.get_terminal_size(self._descriptor).columns - 1)

    @property
    def room(self) -> int:
        """Rows that may be taken: half of them, so that output stays readable."""
        return os.get_terminal_size(self._descriptor).lines // 2

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines in place of those before."""
        size = os.get_terminal_size(self._descriptor)
        lines, text = lines[: max(1, size.lines // 2)], ""
        if (len(lines), size) != (self._rows, self._size) or not self._rows:
            text = self._taken_down() + self._made_room(len(lines), size.lines)
            self._rows, self._size = len(lines), size
        first = size.lines - self._rows + 1
        drawn = "".join(f"\x1b[{first + n};1H\x1b[2K{line}" for n, line in enumerate(lines))
        self._write(f"{text}\x1b7{drawn}\x1b8")
        self._take_stop()

    def clear(self) -> None:
        """Take the lines away and leave the terminal as it was."""
        text, self._rows = self._taken_down(), 0
        try:
            self._write(text)
        except OSError:
            pass  # the terminal is gone
        if self._stopped and threading.current_thread() is threading.main_thread():
            self._stopped = False
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _taken_down(self) -> str:
        if not self._rows:
            return ""
        first = self._size.lines - self._rows + 1
        return f"\x1b7\x1b[{first};1H\x1b[J\x1b[r\x1b8"

    def _made_room(self, rows: int, height: int) -> str:
        """Index (ESC D) scrolls where it has to and, unlike a line feed, keeps the column."""
        scrolled = "\x1bD" * rows + f"\x1b[{rows}A"
        return f"{scrolled}\x1b7\x1b[1;{height - rows}r\x1b8"

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    # --- Ctrl-Z --------------------------------------------------------------------------------

    def _take_stop(self) -> None:
        """While lines are shown, who gets the terminal after Ctrl-Z gets it as it was."""
        mine = threading.current_thread() is threading.main_thread()
        if self._stopped or not mine or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
            return
        signal.signal(signal.SIGTSTP, self._stop)
        self._stopped = True

    def _stop(self, number: int, _: object) -> None:
        self.clear()
        os.kill(os.getpid(), signal.SIGTSTP)  # here we stop; the next drawing begins anew
