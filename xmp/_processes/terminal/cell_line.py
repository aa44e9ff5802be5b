"""One line in the cell of a notebook, redrawn: a display that is updated.

Text with a carriage return would do where nothing else writes to the cell; replicas do.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CellLine"]


class CellLine:
    """As ``status_line``, for the cell that runs when it is first drawn. It stays there."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._text = ""

    def possible(self) -> bool:
        """A cell takes it, always."""
        return True

    def draw(self, text: str) -> bool:
        """Show this line in place of the one before."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display({"text/plain": text}, raw=True, display_id=True)
        elif text != self._text:
            self._handle.update({"text/plain": text}, raw=True)
        self._text = text
        return True

    def erase(self) -> None:
        """Nothing is below the line: it can stay."""

    def finish(self, text: str) -> None:
        """The last line, if there was one before."""
        if self._handle is not None:
            self.draw(text)
