"""The handlers that the kernel calls, which need not be Python's.

Python tells the kernel to call its own handler, which notes the signal for ``signal.signal``'s. A
library may have put another before that, which passes the signal on: faulthandler (``chain=True``),
absl. So Python's handler is exchanged without the kernel's, unless a library has set both.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of signal: it is used in forks
import ctypes
from typing import Any

__all__ = ["SigAction", "is_of_library", "set_in_python", "sigaction"]

SigAction = ctypes.c_char * 256
"""A struct sigaction: more bytes than any system's has."""
sigaction = ctypes.CDLL(None).sigaction
_OF_LIBRARIES = ("ray._private.worker", "ray._private.node")
"""Modules whose handlers are none of the program's: ``ray.init`` sets one of SIGTERM that ends the
process (2.60), and then, by absl, one in the kernel. That passes the signal on, but aborts the
process 3 s later (absl/debugging/failure_signal_handler.h, alarm_on_failure_secs)."""
_aside: dict[int, Any] = {}
"""What the kernel had for signals that a library handles, while another handler is in its place."""


def is_of_library(handler: Any) -> bool:
    """Return whether a library has set the handler, and the program has not."""
    return getattr(handler, "__module__", None) in _OF_LIBRARIES


def set_in_python(number: int, handler: Any) -> None:
    """Set Python's handler, and leave the kernel's as it is, with its flags (siginterrupt).

    In the place of a library's handler Python's own is told to the kernel, until it is set again.
    """
    action = SigAction()
    known = sigaction(number, None, action) == 0
    library = is_of_library(_signal.getsignal(number))
    _signal.signal(number, handler)
    if library and not is_of_library(handler):
        _aside[number] = action
    elif is_of_library(handler) and number in _aside:
        sigaction(number, _aside.pop(number), None)
    elif known:
        sigaction(number, action, None)
