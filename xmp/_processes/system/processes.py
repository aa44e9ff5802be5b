"""Which processes are there: children and their states, and how all of them end."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable

from .kernel import open_pidfd

__all__ = [
    "children",
    "end_descendants",
    "is_gone",
    "is_stopped",
    "is_zombie",
    "kill",
    "largest",
    "next_ended",
    "signal_name",
    "wait_gone",
]

_KILLED_WAIT = 2.0  # seconds in which a process that can be killed has ended
_STEP = 0.005


def children(pid: int) -> list[int]:
    """The living children of a process, also those that it adopted."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found.extend(int(child) for child in file.read().split())
    except OSError:
        return _children_by_psutil(pid) if not os.path.exists("/proc/self/task") else found
    return found


def is_stopped(pid: int) -> bool:
    """Whether somebody stopped a process (SIGSTOP, a terminal)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return is_zombie(pid)


def kill(pid: int) -> None:
    """SIGKILL to one process, if it is there; 0 would be our own group."""
    if pid > 0:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def wait_gone(pid: int, seconds: float) -> bool:
    """Wait until a process that is no child of ours has ended; False when the time is over."""
    end = time.monotonic() + seconds
    while not is_gone(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.002)  # without a pidfd nothing tells
    return True


def is_zombie(pid: int) -> bool:
    """Whether a process has ended and waits to be reaped."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def next_ended() -> int | None:
    """A child that has ended, not yet reaped."""
    if not hasattr(os, "waitid"):
        return _next_ended_without_waitid()
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _next_ended_without_waitid() -> int | None:
    for pid in children(os.getpid()):
        if is_zombie(pid):
            return pid
    return None


def _children_by_psutil(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def largest(usage: resource.struct_rusage) -> int:
    """Bytes that an ended process had resident at most."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def signal_name(number: int) -> str:
    """``SIGKILL``; real-time signals have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_descendants(spare: Iterable[int] = ()) -> set[int]:
    """SIGKILL and reap every child that is not spared, until none is left.

    For subreapers: each one that dies hands its own children up to us, so the loop ends with
    the last of a double-forked or ``setsid`` tree. Returns what sits in an uninterruptible system
    call, after a bounded wait; the kernel ends it when the call returns.
    """
    spared, left = set(spare), set[int]()
    for _ in range(1000):
        doomed = [pid for pid in children(os.getpid()) if pid not in spared | left]
        if not doomed:
            break
        for pid in doomed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        end = time.monotonic() + _KILLED_WAIT
        left |= {pid for pid in doomed if not _reap(pid, end)}
    return left


def _reap(pid: int, end: float) -> bool:
    """Wait for a child that was killed; False when the time is over."""
    watch = open_pidfd(pid)
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            left = end - time.monotonic()
            if left <= 0:
                return False
            if watch is None:
                time.sleep(_STEP)
            else:
                poller = select.poll()
                poller.register(watch, select.POLLIN)
                poller.poll(left * 1000)
    except ChildProcessError:
        pass
    finally:
        if watch is not None:
            os.close(watch)
    return True
