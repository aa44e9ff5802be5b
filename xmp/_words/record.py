"""Where a rank is among the others: the words in which a hang is judged."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

__all__ = ["ENDED", "RETURNED", "Frame", "RankPlace", "Record", "have_not_come", "ranks"]

RETURNED = "returned"
"""The function of a rank has returned."""
ENDED = "ended"
"""Its process has ended."""


@dataclass(frozen=True)
class Record:
    """What a rank last did together with others, as its line of shared memory says.

    Times are monotonic nanoseconds.
    """

    number: int = 0
    """The collective's number among those of its group, from 1; 0: none yet."""
    operation: str = ""
    """The collective as the user calls it: "barrier", "all_reduce" …"""
    group: int = 0
    """A number that is the same for this group on all its ranks; 0: all ranks."""
    members: tuple[int, ...] = ()
    """The group's ranks; empty: all ranks."""
    signature: int = 0
    """A hash of what must be equal on all ranks: operation, data types, shapes, structure."""
    detail: str = ""
    """The same in words, as far as they fit: "sum of float32[4]"."""
    site: str = ""
    """The user's line that called it, "train.py:40", with the end of a long path only."""
    since: int = 0
    """When the rank entered it, or left it if it is not ``inside``."""
    inside: bool = False
    beat: int = 0
    """The last ``xmp.heartbeat()``; 0: none."""

    def has_left(self, group: int, number: int) -> bool:
        """Return whether the rank has been in that collective: a broadcast's source need not wait.

        Of other groups than that of its last collective nothing is known.
        """
        if self.group != group or self.number == 0:
            return False
        return self.number > number or (self.number == number and not self.inside)


@dataclass(frozen=True)
class Frame:
    """One line of a Python stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class RankPlace:
    """All that is known about where one rank is."""

    rank: int
    record: Record = Record()
    at: int = 0
    """When the record was read, on the clock of its host."""
    frames: tuple[Frame, ...] = ()
    """The main thread's stack, innermost first."""
    user: Frame | None = None
    """The innermost frame of the user's code; None: there is none, or it is not known."""
    doing: str = ""
    """What the kernel says of it: "asleep", "running" …; empty: not known."""
    works: bool = False
    """True: it has done something of late. Known only where ranks of other hosts may wait."""
    thread_meets: bool = False
    """True: a thread of it, which has no record, is in a collective of xmp's."""
    ended: str = ""
    """``RETURNED`` or ``ENDED``; empty: it runs."""


def ranks(numbers: Iterable[int]) -> str:
    """Return ranks as text: ``rank 3`` or ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(numbers):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {words}" if sum(map(len, runs)) == 1 else f"ranks {words}"


def have_not_come(numbers: Collection[int]) -> str:
    """Return "rank 3 has not come" or "ranks 0-2, 5 have not come"."""
    return f"{ranks(numbers)} {'has' if len(numbers) == 1 else 'have'} not come"
