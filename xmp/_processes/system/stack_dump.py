"""The Python stacks of a replica, which writes them into a file when another process asks."""

from __future__ import annotations

import faulthandler
import itertools
import os
import time
from collections.abc import Iterable
from typing import Protocol

from xmp._os import marks, proc
from xmp._os.signals import DUMP_SIGNAL

from . import processes
from .doing import STATES

__all__ = ["DUMP_SIGNAL", "STACKS", "StackFile", "StackSource", "enable_stacks", "take"]

STACKS = "xmp-stacks-"
"""The name of a replica's stacks file, before the rank: other processes find the file by it."""
_ANSWER_SECONDS = 0.5
_POLL = 0.002  # seconds
_LOOK_FOR_ENDS = 10  # polls
_LONGEST = 1024 * 1024


def enable_stacks(descriptor: int) -> None:
    """Have faulthandler write all threads' stacks there, on a native crash and on DUMP_SIGNAL."""
    faulthandler.enable(descriptor)
    faulthandler.register(DUMP_SIGNAL, descriptor, all_threads=True)


class StackFile:
    """A reader's handle on the file into which faulthandler writes a replica's stacks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._answered = 0

    def size(self) -> int:
        """Return how many bytes have been written so far."""
        return os.fstat(self._descriptor).st_size

    def answer(self, before: int) -> str:
        """Return the answer to a request; ``before`` is the size when the signal was sent."""
        text = self._read(before)
        if text:
            self._answered = self.size()
        return text

    def unrequested(self) -> str:
        """Return the text after the last answer: of a native crash, or another's request."""
        return self._read(self._answered)

    def _read(self, start: int) -> str:
        # The replica may have truncated it.
        size = max(0, min(self.size() - start, _LONGEST))
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
    """Return the stacks of the living replicas, by rank, within half a second.

    faulthandler writes them from a signal handler, in C, even while Python is stuck. It does not
    mark the end of a dump: a dump is complete when its file has grown and then stays as it is.
    """
    taken: dict[int, str] = {}
    before: dict[StackSource, int] = {}
    for replica in replicas:
        if replica.ended:
            continue
        if why := _refusal(replica.pid):
            taken[replica.rank] = f"{why}; {_state(replica.pid)}\n"
        else:
            before[replica] = replica.stacks.size()
            replica.request_stacks()
    _wait_for_answers(before)
    for each, start in before.items():
        taken[each.rank] = each.stacks.answer(start) or _no_answer(each.pid)
    return taken


def _wait_for_answers(before: dict[StackSource, int]) -> None:
    """Wait until all have answered that live: one that was told to end may be gone by now."""
    sizes = dict.fromkeys(before, -1)
    end = time.monotonic() + _ANSWER_SECONDS
    for poll in itertools.count():
        now = {replica: replica.stacks.size() for replica in before}
        missing = [r for r in before if now[r] != sizes[r] or now[r] <= before[r]]
        if poll % _LOOK_FOR_ENDS == _LOOK_FOR_ENDS - 1:
            missing = [replica for replica in missing if not processes.is_gone(replica.pid)]
        if not missing or time.monotonic() >= end:
            break
        sizes = now
        time.sleep(_POLL)


def _refusal(pid: int) -> str:
    """Return why the signal would end a process, now or later, or not be answered; else "".

    A process may have executed another program, reset its signals, or unregistered faulthandler.
    It can still do so between this check and the signal, some 10 µs.
    """
    known = proc.status(pid)
    # Nothing is known on macOS, or of a process that has ended.
    if "SigCgt" not in known or proc.alive(pid) is None:
        return ""
    if not any(proc.has_signal(known, mask, DUMP_SIGNAL) for mask in ("SigIgn", "SigCgt")):
        forked = marks.PAGE in proc.text(f"/proc/{pid}/maps")  # exec takes this page away
        done = "reset its signals" if forked else f"executed another program ({known['Name']})"
        return f"does not answer requests for stacks: it has {done}"
    # A blocked signal stays pending across exec(2), and then ends the other program.
    threads = _threads(pid) if proc.has_signal(known, "SigBlk", DUMP_SIGNAL) else []
    if threads and all(proc.has_signal(each, "SigBlk", DUMP_SIGNAL) for each in threads):
        return "does not answer requests for stacks: it blocks their signal"
    return ""


def _threads(pid: int) -> list[dict[str, str]]:
    """Return the status of every thread of a process; [] if it has ended."""
    try:
        return [proc.status(f"{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _no_answer(pid: int) -> str:
    if processes.is_gone(pid):
        return "ended before it answered\n"
    return f"no answer: {_state(pid)}\n"


def _state(pid: int) -> str:
    """Return what the kernel reports about a process, in words."""
    found = proc.process(pid)
    if found is None:
        return "it has ended"
    doing = STATES.get(found.state, f"state {found.state}")
    return f"{doing}, kernel function {proc.text(f'/proc/{pid}/wchan') or '?'}"
