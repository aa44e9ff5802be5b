"""A line that is redrawn while others write: on the terminal, or in a notebook's cell.

On a terminal it is on the row below the cursor. Replicas write to the terminal directly, so the
launcher does not know where the cursor is. Each drawing is one write, which the kernel does not mix
with another. It erases everything behind and below the cursor, draws the line on the next row and
puts the cursor back. So the text of replicas is neither erased nor moved, with one exception: text
behind a cursor that was moved back, as some progress bars do, is gone until it is written again.

If replicas write several lines between two drawings, the second one lands on the row of the status
line, which is at the right and dim so that the two remain distinguishable.

In a cell it is a display that is updated. Text with a carriage return would be enough only if
nothing else wrote to the cell; replicas do.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from xmp._os import log

__all__ = ["CellLine", "draw", "erase", "finish", "possible"]

_ERASE = "\x1b[J"
# ESC D makes a next row, even at the bottom, and unlike a line feed keeps the column.
_BELOW = "\x1bD\x1b[A\x1b7\r\n\x1b[2m"
_BACK = "\x1b8"
_LEAST_COLUMNS, _LEAST_ROWS = 20, 3

_shown = False


def possible() -> bool:
    """Return whether standard error is a terminal that can show the line, in the foreground."""
    return _terminal() >= 0


def draw(text: str) -> bool:
    """Show this text in place of the one before. Return False if that is not possible."""
    global _shown
    terminal = _terminal()
    if terminal < 0:
        return False
    # A character in the last column would make some terminals begin another row.
    width = os.get_terminal_size(terminal).columns - 1
    _shown = True
    _write(terminal, f"{_ERASE}{_BELOW}{text[:width]:>{width}}{_BACK}")
    return True


def erase() -> None:
    """Erase the line, if it is shown."""
    global _shown
    if not _shown:
        return
    _shown = False
    try:
        _write(_terminal(), _ERASE)
    except OSError:
        pass  # the terminal is gone, or another process group has it


def finish(text: str) -> None:
    """Erase the line without drawing the last text: the terminal is the program's again."""
    erase()


def _terminal() -> int:
    """Return the descriptor of standard error, or -1 if no status line can be shown.

    A notebook's stream has the descriptor of the terminal from which the server was started, but
    its ``isatty`` returns False.
    """
    try:
        descriptor = sys.stderr.fileno() if sys.stderr.isatty() else -1
        in_front = os.tcgetpgrp(descriptor) == os.getpgrp()
        size = os.get_terminal_size(descriptor)
    except (AttributeError, OSError, ValueError):
        return -1  # standard error is missing, closed, or not the controlling terminal
    room = size.columns >= _LEAST_COLUMNS and size.lines >= _LEAST_ROWS
    known = os.environ.get("TERM") not in (None, "", "dumb")
    return descriptor if in_front and room and known else -1


def _write(terminal: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(terminal, data) :]


log.before_each_line(erase)


class CellLine:
    """A line like ``status_line``, in the cell that runs when it is first drawn. It stays there."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._text = ""

    def possible(self) -> bool:
        """Return whether the line can be drawn: a cell always takes it."""
        return True

    def draw(self, text: str) -> bool:
        """Show this text in place of the one before. Return True: it was drawn."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        elif text != self._text:
            self._handle.update({"text/plain": text}, raw=True)
        self._text = text
        return True

    def erase(self) -> None:
        """Do nothing: nothing is below the line, so it can stay."""

    def finish(self, text: str) -> None:
        """Draw the last text, if a line was drawn before."""
        if self._handle is not None:
            self.draw(text)
