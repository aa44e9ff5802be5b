"""Waiting for a condition: in tests, in replicas and in scripts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["until"]

T = TypeVar("T")


def until(
    condition: Callable[[], T],
    seconds: float = 10,
    what: str | Callable[[], str] = "the condition",
) -> T:
    """Wait until ``condition()`` is true; its value, or a failure that names what did not come.

    ``what`` may be a function, for a text that is known at the failure only.
    """
    end, pause = time.monotonic() + seconds, 0.002
    while not (value := condition()):
        if time.monotonic() > end:
            missing = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {missing}")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.025)  # a look may read all of /proc
    return value
