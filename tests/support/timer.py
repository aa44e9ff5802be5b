"""A signal to this process after a time, sent by the kernel: no thread, and no alarm is used up."""

from __future__ import annotations

import ctypes
import os
import time

__all__ = ["Timer"]


class Timer:
    """timer_create(2): one signal to this process after a time; no thread has to send it."""

    def __init__(self, number: int) -> None:
        self._libc, self._timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
        event = (ctypes.c_int * 16)()
        event[2], event[3] = number, 0  # sigev_signo, SIGEV_SIGNAL
        made = self._libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(self._timer))
        assert made == 0, os.strerror(ctypes.get_errno())

    def set(self, seconds: float) -> None:
        """0 switches it off."""
        value = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
        assert self._libc.timer_settime(self._timer, 0, value, None) == 0
