"""What is told of a launch that took longer than it may: an exception, with everybody's stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xmp._errors import ReplicaTimeout
from xmp._limits import HANG, START, Overdue
from xmp._types import ReplicaPlan

from .mates import spread
from .memory import Memory
from .order import Failure
from .stacks import grouped, ranks

__all__ = ["DIVERGED", "Place", "build", "places", "seconds"]

DIVERGED = "the ranks diverged, as when not all make the same collective calls"


@dataclass(frozen=True)
class Place:
    """Where a process's replicas are: of the first of them the local rank, and all their ranks."""

    local_rank: int
    pid: int
    ranks: Sequence[int]


def places(plans: Mapping[int, ReplicaPlan], pids: Mapping[int, int]) -> dict[int, Place]:
    """The places of all processes, by their first rank."""
    return {
        rank: Place(plan.local_rank, pids[rank], [*spread(plan, None)])
        for rank, plan in plans.items()
    }


def build(
    overdue: Overdue,
    failures: Sequence[Failure],
    world_size: int,
    host: str,
    results: Mapping[int, Any],
    stacks: Mapping[int, str],
    places: Mapping[int, Place],
    memory: Memory,
) -> ReplicaTimeout:
    """The exception; its attributes describe the first of the ranks that were waited for.

    What is overdue are processes, each known by its first rank.
    """
    overdue = replace(
        overdue,
        ranks=tuple(rank for first in overdue.ranks for rank in places[first].ranks),
        finished=tuple(rank for first in overdue.finished for rank in places[first].ranks),
    )
    parts = [f"{overdue.name}={seconds(overdue.limit)}: {_words(overdue, world_size, host)}"]
    parts += filter(None, [memory.found(killed=False)])  # whoever waits may wait for one of those
    error = ReplicaTimeout("\n\n".join([*parts, *grouped(stacks)]))
    error.host, error.rank = host, overdue.ranks[0]
    error.local_rank, error.pid = places[error.rank].local_rank, places[error.rank].pid
    for failure in failures:
        if failure.rank == error.rank:
            error.exit_code, error.signal_name = failure.exit_code, failure.signal_name
    error.failures, error.results, error.stacks = tuple(failures), dict(results), dict(stacks)
    return error


def seconds(nanoseconds: int) -> str:
    """``2.5``, as the user has written it."""
    return f"{nanoseconds / 1e9:g}"


def _words(overdue: Overdue, world_size: int, host: str) -> str:
    limit, waited = seconds(overdue.limit), f"{ranks(overdue.ranks)} of {world_size} on {host}"
    if overdue.at_the_end:
        return (
            f"every function has returned, but {waited} did not end:\na thread that is no daemon, "
            "an exit handler or the framework's shutdown still waits"
        )
    if overdue.name == START:
        return f"{waited} not in the function {limit} s after the call"
    if overdue.diverged:
        had = f"{ranks(overdue.finished)} had finished while {waited} waited"
        return f"{had},\nwithout progress for {limit} s: {DIVERGED}"
    if overdue.name == HANG:
        return f"no progress for {limit} s: {waited} still running"
    return f"not done {limit} s after the call: {waited} still running"
