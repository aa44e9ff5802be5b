"""A descriptor that becomes readable when a replica ends, which is no child of this process."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable

from xmp._processes.system import processes
from xmp._processes.system.linux import open_pidfd

__all__ = ["Sentinel"]

_LOOK_SECONDS = 0.02


class Sentinel:
    """Open until ``close()``, or until nothing refers to it any more."""

    def __init__(self, pid: int, reported: Callable[[], bool]) -> None:
        """Take ``reported()``: whether its end is known, after which ``pid`` may be another's."""
        self.descriptor = _opened(pid, reported)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        self._close.atexit = False  # the kernel closes it

    def close(self) -> None:
        self._close()


def _opened(pid: int, reported: Callable[[], bool]) -> int:
    pidfd = None if reported() else open_pidfd(pid)
    if pidfd is not None and not reported():
        return pidfd
    if pidfd is not None:
        os.close(pidfd)
    reader, writer = os.pipe()
    if reported() or processes.is_gone(pid):
        os.close(writer)
    else:  # no pidfds here (linux.py says where)
        threading.Thread(
            target=_close_with, args=(pid, writer), name=f"xmp-sentinel-{pid}", daemon=True
        ).start()
    return reader


def _close_with(pid: int, writer: int) -> None:
    while not processes.is_gone(pid):
        time.sleep(_LOOK_SECONDS)
    os.close(writer)
