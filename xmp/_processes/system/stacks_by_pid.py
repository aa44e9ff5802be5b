"""Takes the stacks of replicas by their pids alone, from any process of their user."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from xmp._os.probe import launches
from xmp._os.proc import Process

from . import stack_dump
from .processes import HeldProcess
from .stack_dump import DUMP_SIGNAL, STACKS, StackFile

__all__ = ["of_launch", "of_replicas"]


def of_launch(supervisor: int) -> dict[int, str]:
    """Return the stacks of all living replicas of one supervisor, by rank."""
    found = [each for each in launches.launches() if each.supervisor.pid == supervisor]
    return of_replicas(found[0].replicas) if found else {}


def of_replicas(replicas: Sequence[Process]) -> dict[int, str]:
    """Return the stacks of these processes, by rank."""
    sources = [each for each in map(_Replica.find, replicas) if each is not None]
    try:
        return dict(sorted(stack_dump.take(sources).items()))
    finally:
        for each in sources:
            each.close()


@dataclass(eq=False)
class _Replica:
    """A replica of another launch, in the form that ``stack_dump.take`` needs."""

    rank: int
    pid: int
    stacks: StackFile
    held: HeldProcess
    ended: bool = False

    @classmethod
    def find(cls, process: Process) -> _Replica | None:
        """Return the replica; None if the process has no stacks file, yet or any more."""
        held, file = HeldProcess.hold(process), None
        if held is None:
            return None
        try:
            file = _stacks_file(process.pid)
        finally:
            if file is None:
                held.close()
        return cls(file[0], process.pid, StackFile(file[1]), held) if file else None

    def request_stacks(self) -> None:
        """Make the replica write the stacks of all threads to its stack file."""
        self.held.signal(DUMP_SIGNAL)

    def close(self) -> None:
        self.stacks.close()
        self.held.close()


def _stacks_file(pid: int) -> tuple[int, int] | None:
    """Return the rank and the opened stacks file; the last file is the innermost launch's."""
    try:
        numbers = sorted(map(int, os.listdir(f"/proc/{pid}/fd")), reverse=True)
        for number in numbers:
            place = f"/proc/{pid}/fd/{number}"
            rank = os.readlink(place).partition(STACKS)[2].partition(" ")[0].partition("-")[0]
            if rank.isdecimal() and rank.isascii():
                # A file of the user's may have such a name; opening a FIFO would wait.
                file = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                if stat.S_ISREG(os.fstat(file).st_mode):
                    return int(rank), file
                os.close(file)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
    return None  # it has ended
