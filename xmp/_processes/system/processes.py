"""Processes: their children, states and ends; and those of other launches, held for a signal.

On Linux all of it is read from ``/proc``; on macOS by psutil, which a launch on Linux never
imports.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from xmp._os import proc
from xmp._os.proc import Process, alive
from xmp._processes.system.descriptors import move_above

from .linux import open_pidfd, ready

__all__ = [
    "CPU_TIME", "TRACKER", "HeldProcess", "children", "cpu_limits", "drain", "end_descendants",
    "is_ending", "is_gone", "is_stopped", "is_zombie", "kill", "next_ended", "out_of_cpu_time",
    "peak_memory", "signal_name", "wait_gone", "wake_on_ends",
]  # fmt: skip

CPU_TIME = "the limit of its CPU time"
TRACKER = "from multiprocessing.resource_tracker import main"
"""A part of the command of every resource tracker (CPython 3.10 to 3.13)."""
_TRACKER_WAIT = 1.0
_KILLED_WAIT = 2.0  # seconds within which a process that can be killed ends
_PF_EXITING = 0x4  # include/linux/sched.h
_POLL = 0.002  # seconds between two looks where no pidfd reports the end


def children(pid: int) -> list[int]:
    """Return the living children of a process, adopted ones included.

    Return [] if ``/proc`` is of another pid namespace: its pids would be those of other processes.
    """
    if sys.platform != "linux":
        import psutil

        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []
    if proc.is_foreign():
        return []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    lists = (proc.text(f"/proc/{pid}/task/{task}/children") for task in tasks)
    return [int(child) for found in lists for child in found.split()]


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a terminal has stopped a process (SIGSTOP, Ctrl-Z)."""
    found = proc.process(pid)
    return found is not None and found.state == "T"


def is_zombie(pid: int) -> bool:
    """Return whether a process has ended and waits to be reaped."""
    if sys.platform != "linux":
        import psutil

        try:
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False
    found = proc.process(pid)
    return found is not None and found.state == "Z"


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return is_zombie(pid)


def kill(pid: int) -> None:
    """Send SIGKILL to a process if it exists; not to pid 0, which would be our own group."""
    if pid > 0:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def wait_gone(pid: int, seconds: float) -> None:
    """Wait for at most ``seconds`` until a process that is no child of ours has ended."""
    end = time.monotonic() + seconds
    while not is_gone(pid) and time.monotonic() < end:
        time.sleep(_POLL)


def next_ended() -> int | None:
    """Return the pid of a child that has ended and is not reaped yet; None if there is none."""
    if not hasattr(os, "waitid"):  # on macOS before Python 3.13
        return next(filter(is_zombie, children(os.getpid())), None)
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def peak_memory(usage: resource.struct_rusage) -> int:
    """Return the peak resident bytes of an ended process; getrusage(2) counts KiB, macOS bytes."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def cpu_limits(pid: int) -> tuple[int, int]:
    """Return RLIMIT_CPU (soft, hard) of a process, which may be a zombie; -1: no limit."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_CPU)
    except (OSError, AttributeError):
        return -1, -1  # it is gone, or this is no Linux


def out_of_cpu_time(status: int, usage: resource.struct_rusage, limits: tuple[int, int]) -> str:
    """Return a phrase if the kernel has ended a process for its use of CPU time; else "".

    The kernel sends SIGXCPU at the soft limit, to which it then adds a second, and SIGKILL at the
    hard one (kernel/time/posix-cpu-timers.c, check_process_timers).
    """
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    which = {int(signal.SIGXCPU): 0, int(signal.SIGKILL): 1}.get(number)
    used = usage.ru_utime + usage.ru_stime
    if which is None or limits[which] < 0 or used < limits[which] - 1.2:
        return ""
    return f"{CPU_TIME}: it has used {used:.0f} s"


def is_ending(pid: int) -> bool:
    """Return whether a process is exiting, and so closes its files, or has ended."""
    fields = proc.text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return not fields or fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def signal_name(number: int) -> str:
    """Return ``SIGKILL``; for real-time signals as kill(1): ``SIGRTMIN+6``, ``SIGRTMAX-2``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        pass
    if sys.platform == "linux" and signal.SIGRTMIN < number < signal.SIGRTMAX:
        above, below = number - signal.SIGRTMIN, signal.SIGRTMAX - number
        return f"SIGRTMIN+{above}" if above <= 15 else f"SIGRTMAX-{below}"
    return f"SIG{number}"  # the C library's own: gdb names them so


def end_descendants(spare: Iterable[int] = ()) -> set[int]:
    """Send SIGKILL to every child that is not spared, and reap it, until none is left.

    This is for subreapers: the children of each one that dies become ours, so the loop ends with
    the last process of a double-forked or ``setsid`` tree. Return the children that are in an
    uninterruptible system call after a bounded wait; the kernel ends them when the call returns.

    multiprocessing's resource trackers end by themselves, a moment after the last process that they
    work for, and remove what was left behind: they are killed only if they do not.
    """
    spared, left, waited = set(spare), set[int](), False
    for _ in range(1000):
        found = {*children(os.getpid())} - spared - left
        if not found:
            break
        doomed = {
            pid for pid in found if waited or TRACKER not in proc.text(f"/proc/{pid}/cmdline")
        }
        if not doomed:
            end, waited = time.monotonic() + _TRACKER_WAIT, True
            for pid in found:
                _reap(pid, end)
        for pid in doomed:
            kill(pid)
        end = time.monotonic() + _KILLED_WAIT
        left |= {pid for pid in doomed if not _reap(pid, end)}
    return left


def _reap(pid: int, end: float) -> bool:
    """Wait for a killed child until ``end``. Return whether it was reaped."""
    pidfd = open_pidfd(pid)
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            left = end - time.monotonic()
            if left <= 0:
                return False
            if pidfd is None:
                time.sleep(_POLL)
            else:
                ready(pidfd, select.POLLIN, left)
    except ChildProcessError:
        pass
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


@dataclass(eq=False)
class HeldProcess:
    """A process held by a pidfd, which never refers to another one, or else by its start time.

    Without a pidfd the start time is read before each use. psutil is not used: psutil.Process reads
    the start time and then calls kill(2), and the pid may be another process's by then;
    psutil.wait_procs without pidfds counts a zombie as alive, and in a container process 1 may
    never reap it.
    """

    process: Process
    pidfd: int | None

    @classmethod
    def hold(cls, process: Process) -> HeldProcess | None:
        """Hold a process. Return None if it has ended meanwhile."""
        held = cls(process, open_pidfd(process.pid))
        if held._is_same():  # read after the pidfd was opened, so it refers to this process
            return held
        held.close()
        return None

    def _is_same(self) -> bool:
        now = alive(self.process.pid)
        return now is not None and now.started == self.process.started

    @property
    def lives(self) -> bool:
        """Whether the process has not ended; a zombie has ended."""
        if self.pidfd is None:
            return self._is_same()
        return not ready(self.pidfd, select.POLLIN)

    def signal(self, number: int) -> None:
        """Send a signal to this process and to no other."""
        try:
            if self.pidfd is not None:
                signal.pidfd_send_signal(self.pidfd, number)
            elif self._is_same():
                os.kill(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended; or it belongs to another user by now, and lives on

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)


def wake_on_ends(above: int) -> tuple[int, int]:
    """Return both ends of a pipe that becomes readable whenever a child has ended."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    heard, said = (move_above(end, above) for end in os.pipe())
    for end in (heard, said):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(said, warn_on_full_buffer=False)
    return heard, said


def drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
