"""Streams and publishers of the kernel that keep to the cell that runs now.

In ipykernel 7 what a thread writes belongs to the cell in whose context it runs (iostream.py, the
ContextVar ``_parent_header``). In Colab's 6.17 it belongs to the cell that happens to run when it
is written: there these take the place of the kernel's own.
"""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["for_this_cell"]


def for_this_cell(target: Any) -> Any:
    """The same stream or publisher; of an old kernel, one that keeps to this cell."""
    parent = getattr(target, "parent_header", None)
    follows_context = isinstance(getattr(type(target), "parent_header", None), property)
    if not isinstance(parent, dict) or follows_context or not hasattr(target, "session"):
        return target  # of a new kernel, or none of a kernel: the program has redirected it
    if hasattr(target, "pub_thread"):
        return _CellWriter(target, parent)
    publisher = copy.copy(target)
    publisher.parent_header = parent
    return publisher


class _CellWriter:
    """Writes to one cell, as ``ipykernel.iostream.OutStream._flush`` does."""

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
        """Nothing is held back."""
