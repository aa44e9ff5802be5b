"""xmp's handlers of signals for which the program has none: Ctrl-C, Ctrl-Z, Ctrl-\\.

These handlers stand in the table of ``signals``, and so run where xmp waits.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as in _signals
import ctypes
import os
from collections.abc import Mapping
from typing import Any

from .kernel_handlers import SigAction, is_of_library, sigaction
from .signals import Handler, guard, in_main

__all__ = ["by_default", "handled"]


class handled:  # noqa: N801 - used like a function
    """A block within which xmp's own handlers serve signals for which the program has none."""

    def __init__(self, wanted: Mapping[int, Handler]) -> None:
        self._wanted = wanted
        self._taken: dict[int, Any] = {}

    def __enter__(self) -> None:
        if not in_main():
            return
        for number, handler in self._wanted.items():
            if number not in guard.ours and _is_free(number):
                self._taken[number] = guard.theirs.get(number, _signal.getsignal(number))
                guard.ours[number] = handler
                if _signal.getsignal(number) is not guard.note:
                    self._set(number, guard.note)

    def __exit__(self, *_: object) -> None:
        for number, before in self._taken.items():
            guard.ours.pop(number, None)
            if number not in guard.theirs and _signal.getsignal(number) is guard.note:
                self._set(number, before)
                # It came when xmp had nothing left to do: let it act as it would without xmp,
                # except Ctrl-\, which was meant for the launch.
                if number in guard.noted and before == _signal.SIG_DFL:
                    del guard.noted[number]
                    if number != _signal.SIGQUIT:
                        os.kill(os.getpid(), number)
        self._taken.clear()

    def _set(self, number: int, handler: Any) -> None:
        """Set a handler: of a library's signal in the kernel's place, too, and back."""
        of_library = is_of_library(self._taken[number])
        (guard.set if of_library else _signal.signal)(number, handler)


def _is_free(number: int) -> bool:
    """Return whether the program has no handler, not even one that Python does not know of."""
    handler = guard.theirs.get(number) or _signal.getsignal(number)
    if number == _signal.SIGINT:
        return handler is _signal.default_int_handler
    if is_of_library(handler):
        return True
    if handler != _signal.SIG_DFL:
        return False
    action = SigAction()  # faulthandler.register sets its handler there
    sigaction(number, None, action)
    return ctypes.c_void_p.from_buffer(action).value is None


def by_default(number: int) -> None:
    """Let a signal do what it does without a handler: stop this process, or end it."""
    before = _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)
    _signal.signal(number, before)
