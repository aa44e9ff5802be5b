"""A line in a notebook's cell that is redrawn: a display that is updated.

Text with a carriage return would be enough only if nothing else wrote to the cell; replicas do.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CellLine"]


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
