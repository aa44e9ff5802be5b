"""The hundred hangs, by name: what runs, on how many ranks, with which runtime."""

from __future__ import annotations

from dataclasses import dataclass

from .elsewhere import WAYS
from .meetings import MEETINGS
from .special import SPECIAL

__all__ = ["CASES", "Case", "run"]

OWNER = 0
"""The rank that all others wait for in ``once_per_host``."""
LATE = 2
"""The rank that is elsewhere in all others."""


@dataclass(frozen=True)
class Case:
    """One hang: a way to be elsewhere and a meeting, or a special one."""

    name: str
    way: str = ""
    meeting: str = ""
    nprocs: int = 3
    hosts: int = 1

    @property
    def runtime(self) -> str:
        """The runtime of the launch."""
        if self.meeting:
            return MEETINGS[self.meeting][0]
        return "jax" if self.name.startswith("jax") else "cpu"

    @property
    def late(self) -> int:
        """The rank that does not come, where it is one rank."""
        return OWNER if self.meeting == "xmp_once_per_host" else LATE


def run(rank: int, case: Case) -> None:
    """Hang as the case says; the function of its replicas."""
    if not case.meeting:
        SPECIAL[case.name](rank)
        return
    MEETINGS[case.meeting][1](WAYS[case.way] if rank == case.late else int)


def _cases() -> list[Case]:
    meetings = list(MEETINGS)
    found = [
        Case(f"{way}-{meeting}", way, meeting)
        for n, way in enumerate(WAYS)
        for meeting in (meetings[n % len(meetings)], meetings[(n + 5) % len(meetings)])
    ]
    found += [Case(name, nprocs=4) for name in SPECIAL]
    found += [Case(f"{n}_ranks", "sleeps", "xmp_barrier", n) for n in (8, 16, 64)]
    found.append(Case("2_hosts", "sleeps", "xmp_barrier", 2, hosts=2))
    found.append(Case("2_hosts_that_poll", "polls", "xmp_all_reduce", 2, hosts=2))
    return found


CASES = {case.name: case for case in _cases()}
