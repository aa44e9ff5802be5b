"""Displays of replicas for the notebook's cell, passed on in order with the text that they write.

Imported for notebooks only.
"""

from __future__ import annotations

from collections import deque

from xmp._processes.messages.cell_frames import frame
from xmp._processes.messages.plain_format import Malformed
from xmp._processes.messages.replica import ShowInCell, ShownInCell
from xmp._processes.output.event_loop import OutputPump
from xmp._processes.output.streams import Sink
from xmp._words.types import Output

from .heard_voices import HeardVoice

__all__ = ["CellDisplays"]

_MOST_WAITING = 4
"""The most displays of one voice that wait: it waits for each answer, but a signal handler that
raises may interrupt that."""
_PIECE = 64 * 1024
"""Bytes of a piece: a sink copies the rest of one each time it has written some of it."""


class CellDisplays:
    """The displays of one launch; a replica waits until there is room for its own."""

    def __init__(self, mark: bytes, output: Output, sink: Sink, pump: OutputPump) -> None:
        self._mark = mark
        self._output = output
        self._sink = sink
        self._pump = pump
        self._waiting: deque[tuple[HeardVoice, ShowInCell]] = deque()

    def take(self, message: ShowInCell, voice: HeardVoice) -> None:
        """Pass a display on now, or when the launcher has read the output before it."""
        if sum(each is voice for each, _ in self._waiting) >= _MOST_WAITING:
            raise Malformed("it does not wait until what it displays is passed on")
        self._pump.hurry(voice.replica.sources)
        self._waiting.append((voice, message))
        self.pass_on()

    def pass_on(self) -> None:
        """Pass on waiting displays while there is room."""
        while self._waiting and not self._sink.full:
            voice, message = self._waiting.popleft()
            if self._output.shows(voice.replica.plan):
                data = frame(self._mark, message)
                for start in range(0, len(data), _PIECE):
                    self._sink.put(data[start : start + _PIECE])
            voice.answer(ShownInCell())
