"""``breakpoint()`` in a replica: the debugger gets the launcher's terminal."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from xmp import _breakpoint

if TYPE_CHECKING:
    from .debugger import Debugger

__all__ = ["install"]

_PLAIN = ("", "pdb.set_trace")
"""The values of PYTHONBREAKPOINT that mean Python's own debugger."""
_mine = threading.local()


def install() -> None:
    """Before replicas are forked: ``breakpoint()`` is ours, unless the program has its own."""
    if sys.breakpointhook is sys.__breakpointhook__ and _variable() in _PLAIN:
        sys.breakpointhook = _hook


def _variable() -> str:
    return os.environ.get("PYTHONBREAKPOINT", "")


def _hook(*args: Any, **named: Any) -> Any:
    """``sys.breakpointhook`` of a replica."""
    if _variable() not in _PLAIN:  # the program has set it since
        return sys.__breakpointhook__(*args, **named)
    return _stop(*args, **named)


def _stop(*, header: str | None = None) -> None:
    """Stop in the frame that called ``breakpoint()`` or ``xmp.breakpoint()``."""
    from .debugger import Debugger  # pdb brings thirty modules

    # One for each thread: code that is stepped over may call breakpoint() too.
    debugger: Debugger | None = getattr(_mine, "debugger", None)
    if debugger is None or debugger.owner != os.getpid():
        _mine.debugger = debugger = Debugger()
    debugger.begin(header)
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename == _breakpoint.__file__:
        frame = frame.f_back
    debugger.set_trace(frame)
