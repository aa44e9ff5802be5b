"""Shows the output and displays of replicas in the notebook's cell that launched them.

Since ipykernel 6, descriptors 1 and 2 of a kernel are pipes that its threads read
(ipykernel/iostream.py, ``OutStream._watch_pipe_fd``). Replicas could write there, but their output
would appear in whichever cell is running, perhaps after ``spawn`` has returned, with characters
split between two reads, and as fast as it comes. So replicas get other pipes, and a thread of the
launcher passes their output on to the cell that launched them: all of it before ``spawn`` returns,
in whole characters, at a rate that a browser can take.

In ipykernel 7 a thread's output belongs to the cell in whose context the thread runs (iostream.py,
the ContextVar ``_parent_header``). In Colab's 6.17 it belongs to whichever cell is running when it
is written; there the classes here replace the kernel's own.
"""

from __future__ import annotations

import codecs
import contextvars
import copy
import json
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from xmp._os import log
from xmp._processes.messages.cell_frames import FrameReader
from xmp._processes.messages.replica import ShowInCell

__all__ = ["CellOutput"]

_PORTION = 64 * 1024
_AHEAD = 256 * 1024
"""Bytes between two pauses: the kernel's buffer has no limit."""
_RATE = 16 * 1024 * 1024
"""Bytes a second. A kernel keeps output that a browser does not take in time, then drops it."""
_PATIENCE = 5.0


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


def shower() -> Callable[[ShowInCell], None] | None:
    """Return a function that displays in the cell that runs now; None if this is no notebook."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    publisher = for_this_cell(getattr(shell, "display_pub", None))
    if publisher is None:
        return None

    def show(message: ShowInCell) -> None:
        try:
            _show(publisher, message)
        except Exception as error:  # the front end's connection fails, or it refuses the bundle
            log.warning("what a replica displays was refused: %s", error)

    return show


def _show(publisher: Any, message: ShowInCell) -> None:
    if message.kind.startswith("clear"):
        publisher.clear_output(wait=message.kind == "clear and wait")
        return
    data = {name: _opened(name, text) for name, text in zip(message.types, message.texts)}
    metadata = json.loads(message.metadata) if message.metadata else {}
    publisher.publish(
        data,
        metadata if isinstance(metadata, dict) else {},
        transient={"display_id": message.display_id} if message.display_id else {},
        update=message.kind == "update",
    )


def _opened(name: str, text: str) -> Any:
    """Return the data as front ends expect it: types that end in "json" as JSON, others as text."""
    return json.loads(text) if name.endswith("json") else text


class CellOutput:
    """Two pipes, and the thread that empties them into ``sys.stdout`` and ``sys.stderr``."""

    def __init__(self, mark: bytes) -> None:
        self._cells = _CellStream(sys.stdout, mark), _CellStream(sys.stderr)
        self._end_read, self._end_write = os.pipe()
        # In this context ipykernel finds the cell that is running now.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._run,), name="xmp-output", daemon=True
        )
        self._thread.start()
        _pumps.add(self)

    def ends(self) -> list[int]:
        """Return the replicas' standard output and error, which the receiver closes."""
        return [cell.take_end() for cell in self._cells]

    def _run(self) -> None:
        poller = select.poll()
        cells = {cell.descriptor: cell for cell in self._cells}
        for descriptor in (self._end_read, *cells):
            poller.register(descriptor, select.POLLIN)
        while cells:
            ready = [descriptor for descriptor, _ in poller.poll()]
            for descriptor in ready:
                if descriptor in cells and not cells[descriptor].copy():
                    poller.unregister(descriptor)
                    del cells[descriptor]
            if ready == [self._end_read]:
                break
        for cell in self._cells:
            cell.finish()

    def finish(self) -> None:
        """Wait, after the replicas' end, for at most 5 s until everything has been passed on."""
        if self._end_write >= 0:
            os.close(self._end_write)
            self._end_write = -1
            self._thread.join(_PATIENCE)
            if not self._thread.is_alive():
                self.close()

    def close(self) -> None:
        """Close this process's ends of the pipes."""
        for cell in self._cells:
            cell.close()
        for descriptor in (self._end_read, self._end_write):
            if descriptor >= 0:
                os.close(descriptor)
        self._end_read = self._end_write = -1
        _pumps.discard(self)


class _CellStream:
    """One stream of the cell."""

    def __init__(self, stream: Any, mark: bytes = b"") -> None:
        self._frames = FrameReader(mark) if mark else None
        self._show = shower() if mark else None
        self.descriptor, self._end = os.pipe()
        self._stream = for_this_cell(stream)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ahead = 0

    def take_end(self) -> int:
        end, self._end = self._end, -1
        return end

    def copy(self) -> bool:
        """Pass a portion on. Return False if no more will come."""
        data = os.read(self.descriptor, _PORTION)
        self._take(data)
        self._ahead += len(data)
        if self._ahead >= _AHEAD:
            time.sleep(self._ahead / _RATE)
            self._ahead = 0
            self._pass_on("", flush=True)
        return bool(data)

    def _take(self, data: bytes) -> None:
        for piece in (data,) if self._frames is None else self._frames.feed(data):
            if isinstance(piece, bytes):
                self._pass_on(self._decoder.decode(piece))
            elif self._show is not None:
                self._pass_on("", flush=True)  # first the text that was written before it
                self._show(piece)

    def _pass_on(self, text: str, flush: bool = False) -> None:
        try:
            if text:
                self._stream.write(text)
            if flush:
                self._stream.flush()
        except Exception:
            self._stream = None  # closed meanwhile: go on reading, or replicas would wait

    def finish(self) -> None:
        self._take(b"")
        self._pass_on(self._decoder.decode(b"", final=True), flush=True)

    def close(self) -> None:
        for descriptor in (self.descriptor, self._end):
            if descriptor >= 0:
                os.close(descriptor)
        self.descriptor = self._end = -1


_pumps: weakref.WeakSet[CellOutput] = weakref.WeakSet()


def _forget_all() -> None:
    """Close the pipes in a forked child: they are the parent's, and the thread is not there."""
    for pump in list(_pumps):
        pump.close()


os.register_at_fork(after_in_child=_forget_all)
