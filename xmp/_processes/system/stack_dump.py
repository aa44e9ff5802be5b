"""The Python stacks of a replica: written by it into a file, requested and read by others."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Iterable
from typing import Protocol

from xmp._os import marks, proc
from xmp._os.signals import DUMP_SIGNAL

__all__ = ["DUMP_SIGNAL", "STACKS", "StackFile", "StackSource", "enable_stacks", "take"]

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
        # The replica may have cut it.
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
    """The stacks of those that live, within half a second, by rank.

    faulthandler writes them from a signal handler, in C, also while Python is stuck. It does not
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
    sizes = dict.fromkeys(before, -1)
    end = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < end:
        now = {replica: replica.stacks.size() for replica in before}
        if all(now[each] == sizes[each] and now[each] > before[each] for each in before):
            break
        sizes = now
        time.sleep(_POLL)


def _refusal(pid: int) -> str:
    """Why a process would not answer the signal but end by it, now or later; empty if it answers.

    A process may have executed another program, reset its signals, or unregistered faulthandler.
    Between this look and the signal it still can: some 10 µs.
    """
    known = proc.status(pid)
    # On macOS, and of a process that has ended, nothing is known.
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
    """The status of every thread."""
    try:
        return [proc.status(f"{pid}/task/{thread}") for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _no_answer(pid: int) -> str:
    if proc.process(pid) is None:
        return "ended before it answered\n"
    return f"no answer: {_state(pid)}\n"


def _state(pid: int) -> str:
    """What the kernel says of a process."""
    found = proc.process(pid)
    if found is None:
        return "it has ended"
    doing = _STATES.get(found.state, f"state {found.state}")
    return f"{doing}, kernel function {proc.text(f'/proc/{pid}/wchan') or '?'}"
