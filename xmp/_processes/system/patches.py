"""Libraries that replace forks, threads and waits in the whole process.

After gevent's or eventlet's monkey-patching these are the library's: a fork has a copy of its event
loop, and aborts or hangs in it. A debugger that follows child processes (debugpy's pydevd) starts
threads in each of them, templates and supervisors too, so none of them can be forked safely.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

__all__ = ["Patch", "patch_of_this_process"]


class Patch(NamedTuple):
    """A change that a library has made to this process."""

    text: str
    """The library and what it does, as a sentence for users."""
    allows_spawn: bool = True
    """Whether fresh interpreters can be launched nevertheless."""


def patch_of_this_process() -> Patch | None:
    """Return the patch that forbids a fork here; None if there is none."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_anything_patched():
        return Patch("gevent.monkey.patch_all() has replaced the waits and forks of this process")
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.already_patched:
        # Its select has no poll().
        text = "eventlet.monkey_patch() has replaced the waits and threads of this process"
        return Patch(text, allows_spawn=False)
    if hasattr(os, "original_fork"):  # pydevd keeps it there (_pydev_bundle/pydev_monkey.py)
        return Patch("debugpy follows this process and its children")
    return None
