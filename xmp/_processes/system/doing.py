"""What the kernel says that a process is doing, in words.

``/proc/PID/wchan`` is the kernel's function in which the main thread sleeps. It tells sleep,
sockets, pipes, children, file locks and a stop apart; a lock of threads, a queue and a collective
are one and the same futex (looked up on Linux 6.1 and 6.12). In a sandbox such as gVisor, and for
processes of other users, it is not to be had: then there are no words.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from xmp._os import proc

__all__ = ["STATES", "doing"]

_WATCHED = 0.1
"""Seconds for which processor time is counted: ten ticks of the kernel's clock."""
_BUSY = 0.2
"""Processor time, as a part of a core, above which a process works. Polling every 10 ms is 0.01."""
_TICK = os.sysconf("SC_CLK_TCK")
STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "in an uninterruptible call"}
_WAITS = (
    ("nanosleep", "asleep"),
    ("futex", "waits for a lock, a queue or another thread"),
    ("do_wait", "waits for a child process"),
    ("kernel_wait", "waits for a child process"),
    ("pipe", "waits for a pipe"),
    ("wait_for_partner", "opens a FIFO that has no other end"),
    ("fifo", "opens a FIFO that has no other end"),
    ("unix_", "waits for a socket"),
    ("tcp", "waits for a socket"),
    ("inet", "waits for a socket"),
    ("skb", "waits for a socket"),
    ("sk_", "waits for a socket"),
    ("accept", "waits for a connection"),
    ("flock", "waits for a file lock"),
    ("locks_lock", "waits for a file lock"),
    ("posix_lock", "waits for a file lock"),
    ("poll", "waits for a descriptor"),
    ("select", "waits for a descriptor"),
    ("sigsuspend", "waits for a signal"),
    ("sigtimedwait", "waits for a signal"),
)


def doing(pids: Iterable[int], watch: bool) -> dict[int, str]:
    """Return what the processes do, by pid; "" where it is not known.

    ``watch``: look for a tenth of a second whether they use a processor.
    """
    before = {pid: proc.ticks(pid)[0] for pid in pids}
    if watch:
        time.sleep(_WATCHED)
    return {pid: _busy(pid, ticks) if watch else _state(pid) for pid, ticks in before.items()}


def _busy(pid: int, before: int) -> str:
    used = proc.ticks(pid)[0] - before
    return "busy" if used > _BUSY * _WATCHED * _TICK else _state(pid)


def _state(pid: int) -> str:
    found = proc.process(pid)
    if found is None:
        return ""
    if found.state in STATES:
        return STATES[found.state]
    function = proc.text(f"/proc/{pid}/wchan")
    return next((words for part, words in _WAITS if part in function), "")
