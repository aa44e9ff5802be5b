"""Streams and publishers of the kernel that keep to the cell that runs now.

In ipykernel 7 a thread's output belongs to the cell in whose context the thread runs (iostream.py,
the ContextVar ``_parent_header``). In Colab's 6.17 it belongs to whichever cell is running when it
is written; there the classes here replace the kernel's own.
"""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["for_this_cell"]


def for_this_cell(target: Any) -> Any:
    """Return the same stream or publisher; for an old kernel, one that keeps to this cell."""
    parent = getattr(target, "parent_header", None)
    follows_context = isinstance(getattr(type(target), "parent_header", None), property)
    if not isinstance(parent, dict) or follows_context or not hasattr(target, "session"):
        return target  # a new kernel's, or not a kernel's: the program has redirected it
    if hasattr(target, "pub_thread"):
        return _CellWriter(target, parent)
    publisher = copy.copy(target)
    publisher.parent_header = parent
    return publisher


class _CellWriter:
    """A stream that writes to one cell as ``ipykernel.iostream.OutStream._flush`` does."""

    def __init__(self, stream: Any, parent: dict[str, Any]) -> None:
        self._stream = stream
        self._parent = parent

    def write(self, text: str) -> None:
        stream = self._stream
        content = {"name": stream.name, "text": text}
        stream.session.send(
            stream.pub_thread, "stream", content, parent=self._parent, ident=stream.topic
        )

    def flush(self) -> None:
        """Do nothing: no text is held back."""
