"""Takes the stacks of replicas by their pids alone, from any process of their user."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass

from xmp._os.probe import launches
from xmp._os.proc import Process
from xmp._words.record import ENDED, RankPlace

from . import stack_dump
from .doing import doing
from .processes import HeldProcess
from .records import RECORDS, Records
from .stack_dump import DUMP_SIGNAL, STACKS, StackFile

__all__ = ["of_launch", "of_replicas", "places_of"]


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


def places_of(supervisor: int, replicas: Sequence[Process]) -> list[RankPlace]:
    """Return where each rank of a launch is, without its stack; [] if it cannot be read."""
    file = _file(supervisor, RECORDS, os.O_RDWR)
    if file is None:
        return []
    ranks = {each.pid: _rank(each.pid) for each in replicas}
    by_rank = {rank: pid for pid, rank in ranks.items() if rank is not None}
    known = doing(by_rank.values(), watch=True)
    try:
        records = Records.of_file(file[1], file[0])
        return [
            RankPlace(
                rank=rank,
                record=records.read(local_rank),
                at=time.monotonic_ns(),
                doing=known.get(by_rank.get(rank, 0), ""),
                ended="" if rank in by_rank else ENDED,
            )
            for local_rank, rank in enumerate(range(file[0], file[0] + records.count))
        ]
    finally:
        os.close(file[1])


def _rank(pid: int) -> int | None:
    file = _file(pid, STACKS)
    if file is None:
        return None
    os.close(file[1])
    return file[0]


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
            file = _file(process.pid, STACKS)
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


def _file(pid: int, name: str, access: int = os.O_RDONLY) -> tuple[int, int] | None:
    """Return the rank in a file's name and the opened file; the last is the innermost launch's."""
    try:
        numbers = sorted(map(int, os.listdir(f"/proc/{pid}/fd")), reverse=True)
        for number in numbers:
            place = f"/proc/{pid}/fd/{number}"
            rank = os.readlink(place).partition(name)[2].partition(" ")[0].partition("-")[0]
            if rank.isdecimal() and rank.isascii():
                # A file of the user's may have such a name; opening a FIFO would wait.
                file = os.open(place, access | os.O_CLOEXEC | os.O_NONBLOCK)
                if stat.S_ISREG(os.fstat(file).st_mode):
                    return int(rank), file
                os.close(file)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
    return None  # it has ended
