"""``breakpoint()`` in a replica: the debugger gets the launcher's terminal."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from xmp._inside import breakpoint

if TYPE_CHECKING:
    from .debugger import Debugger

__all__ = ["install"]

_mine = threading.local()


def install() -> None:
    """Make ``breakpoint()`` ours, before replicas are forked, unless the program has its own hook.

    A template that has imported debugpy, as for notebooks, has debugpy's hook, but never a client;
    that hook is replaced.
    """
    hook = sys.breakpointhook
    if (hook is sys.__breakpointhook__ or breakpoint.does_nothing(hook)) and _means_pdb():
        sys.breakpointhook = _hook


def _means_pdb() -> bool:
    return os.environ.get("PYTHONBREAKPOINT", "") in ("", "pdb.set_trace")


def _hook(*args: Any, **named: Any) -> Any:
    if not _means_pdb():  # the program has set it since
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
    while frame.f_back is not None and frame.f_code.co_filename == breakpoint.__file__:
        frame = frame.f_back
    debugger.set_trace(frame)
