"""Where the driver puts what one host's replicas write: the streams of the launch that runs."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence

from xmp._processes.system import linux

__all__ = ["Streams"]

_MOST_EARLY = 64 * 1024
_PATIENCE = 0.2


class Streams:
    """Standard output and error of one launch, for what comes in the thread of an agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: list[int] = []
        """Empty between two launches."""
        self._early: list[tuple[int, bytes]] = []
        """What came before the first launch, or between two."""

    def use(self, streams: Sequence[int]) -> None:
        """Write to these from now on, and close them in the end."""
        with self._lock:
            self._close()
            self._numbers, early = list(streams), self._early
            self._early = []
            for number in self._numbers:
                os.set_blocking(number, False)
        for number, data in early:
            self.write(number, data)

    def write(self, number: int, data: bytes) -> bytes:
        """What is left after a moment: the reader is slow. Without a launch it is kept for one."""
        with self._lock:
            if not self._numbers:
                if sum(len(each) for _, each in self._early) < _MOST_EARLY:
                    self._early.append((number, data))
                return b""
            view = memoryview(data)
            try:
                while view and linux.ready(self._numbers[number], select.POLLOUT, _PATIENCE):
                    view = view[os.write(self._numbers[number], view) :]
            except BlockingIOError:
                pass
            except OSError:
                return b""  # nothing reads it any more
            return bytes(view)

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        for number in self._numbers:
            os.close(number)
        self._numbers = []
