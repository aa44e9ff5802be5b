"""The stacks of replicas as any process of their user can take them, by their pids alone."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from xmp._os.probe import launches
from xmp._os.proc import Process

from . import stack_dump
from .held_process import HeldProcess
from .stack_dump import DUMP_SIGNAL, STACKS, StackFile

__all__ = ["of_launch", "of_replicas"]


def of_launch(supervisor: int) -> dict[int, str]:
    """The stacks of all living replicas of one supervisor, by rank."""
    found = [each for each in launches.launches() if each.supervisor.pid == supervisor]
    return of_replicas(found[0].replicas) if found else {}


def of_replicas(replicas: Sequence[Process]) -> dict[int, str]:
    """The stacks of these processes, by rank."""
    sources = [each for each in map(_Replica.find, replicas) if each is not None]
    try:
        return dict(sorted(stack_dump.take(sources).items()))
    finally:
        for each in sources:
            each.close()


@dataclass(eq=False)
class _Replica:
    """A replica of another launch, as ``stack_dump.take`` wants it."""

    rank: int
    pid: int
    stacks: StackFile
    held: HeldProcess
    ended: bool = False

    @classmethod
    def find(cls, process: Process) -> _Replica | None:
        """None for a process that has no file for its stacks (yet, or any more)."""
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
        """Make it write the stacks of all threads to its stack file."""
        self.held.signal(DUMP_SIGNAL)

    def close(self) -> None:
        self.stacks.close()
        self.held.close()


def _stacks_file(pid: int) -> tuple[int, int] | None:
    """The rank and the opened stacks file of a replica: the last one is the inner launch's."""
    try:
        numbers = sorted(map(int, os.listdir(f"/proc/{pid}/fd")), reverse=True)
        for number in numbers:
            place = f"/proc/{pid}/fd/{number}"
            rank = os.readlink(place).partition(STACKS)[2].partition(" ")[0].partition("-")[0]
            if rank.isdecimal() and rank.isascii():
                # The user's own file may have such a name: a FIFO would be waited for.
                file = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                if stat.S_ISREG(os.fstat(file).st_mode):
                    return int(rank), file
                os.close(file)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
    return None  # it has ended
