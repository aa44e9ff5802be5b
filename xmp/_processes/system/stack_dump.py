"""The Python stacks of a replica: written by it into a file, requested and read by others."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterable
from typing import Protocol

from xmp import _proc

__all__ = ["DUMP_SIGNAL", "STACKS", "StackFile", "StackSource", "enable_stacks", "take"]

# SIGUSR1 and SIGUSR2 belong to Slurm, Lightning and users; libraries leave this one alone.
DUMP_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 6
STACKS = "xmp-stacks-"
"""With the rank, the name of the memory file of a replica's stacks: other processes find it so."""
_ANSWER_SECONDS = 0.5
_POLL = 0.002  # seconds
_LONGEST = 1024 * 1024
_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "in an uninterruptible call"}


def enable_stacks(descriptor: int) -> None:
    """Write the stacks of all threads there on a native crash and when the signal comes."""
    faulthandler.enable(descriptor)
    faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=True)


class StackFile:
    """The file into which faulthandler writes a replica's stacks, as a reader has it open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._answered = 0

    def size(self) -> int:
        """How much has been written so far."""
        return os.fstat(self._descriptor).st_size

    def answer(self, before: int) -> str:
        """What a request has brought; ``before`` is the size when the signal was sent."""
        text = self._read(before)
        if text:
            self._answered = self.size()
        return text

    def unrequested(self) -> str:
        """What follows the last answer: a native crash, or the request of another process."""
        return self._read(self._answered)

    def _read(self, start: int) -> str:
        size = min(self.size() - start, _LONGEST)
        return os.pread(self._descriptor, size, start).decode(errors="replace")

    def close(self) -> None:
        os.close(self._descriptor)


class StackSource(Protocol):
    """A replica whose stacks can be requested."""

    @property
    def rank(self) -> int: ...

    pid: int
    stacks: StackFile
    ended: bool

    def request_stacks(self) -> None: ...


def take(replicas: Iterable[StackSource]) -> dict[int, str]:
    """The stacks of those that live, within half a second, by rank.

    faulthandler writes them from a signal handler, in C, also while Python is stuck. It does not
    mark the end of a dump: a dump is complete when its file has grown and then stays as it is.
    """
    before: dict[StackSource, int] = {}
    for replica in replicas:
        if not replica.ended:
            before[replica] = replica.stacks.size()
            replica.request_stacks()
    sizes = dict.fromkeys(before, -1)
    end = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < end:
        now = {replica: replica.stacks.size() for replica in before}
        if all(now[each] == sizes[each] and now[each] > before[each] for each in before):
            break
        sizes = now
        time.sleep(_POLL)
    return {
        each.rank: each.stacks.answer(start) or _from_proc(each.pid)
        for each, start in before.items()
    }


def _from_proc(pid: int) -> str:
    """What the kernel says of a process that did not answer."""
    found = _proc.process(pid)
    if found is None:
        return "ended before it answered\n"
    doing = _STATES.get(found.state, f"state {found.state}")
    return f"no answer: {doing}, kernel function {_proc.text(f'/proc/{pid}/wchan') or '?'}\n"
