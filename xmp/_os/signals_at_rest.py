"""Signals of a replica that waits for the next call of its gang: handlers run, SIGINT is dropped.

SIGINT there was meant for the call that is over. The supervisor sends it before it sends the next
call, and the kernel delivers a signal before the system call returns that receives a later message.
So every SIGINT that must be dropped has come when ``resume`` is called.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as in signals
from typing import Any

from .signals import guard, in_main

__all__ = ["rest", "resume"]

_SIGINT = int(_signal.SIGINT)
_SECONDS = 60.0
"""The longest single wait: a replica that waits must cost nothing."""


def rest() -> None:
    """After ``signals.keep_deferred``, run handlers where this process waits, and drop SIGINT."""
    if not in_main():
        return
    guard.ours[_SIGINT] = _drop
    if _signal.getsignal(_SIGINT) == _signal.SIG_DFL:
        guard.theirs[_SIGINT] = _signal.SIG_DFL
        guard.set(_SIGINT, guard.note)
    guard.wait_at_rest(_SECONDS)


def resume() -> None:
    """End ``rest``: the program's handlers are in their places, and run at once."""
    if in_main():
        guard.end_rest()
        in_main()  # a call: before it, Python runs the handlers of signals that have come
        guard.noted.pop(_SIGINT, None)
        del guard.ours[_SIGINT]
        guard.restore()


def _drop(number: int, frame: Any) -> None:
    pass
