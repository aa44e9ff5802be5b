"""The error for a launch that has exceeded a time limit, with the stacks of its replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xmp._processes.messages.order import Failure
from xmp._processes.messages.thread_replicas import spread
from xmp._rules.hang_rules import Finding
from xmp._rules.limits import HANG, START, Overdue
from xmp._words.errors import ReplicaTimeout
from xmp._words.record import RankPlace
from xmp._words.types import ReplicaPlan

from .hang_texts import found
from .out_of_memory import OomFinding
from .stack_texts import grouped, ranks

__all__ = ["DIVERGED", "build", "seconds"]

DIVERGED = "the ranks diverged: usually not all of them made the same collective calls"
_BUSY = "If they were busy in native code or a thread, raise hang_timeout or call xmp.heartbeat()."
_STACKS = "Python stacks (most recent call first):"


def build(
    overdue: Overdue,
    failures: Sequence[Failure],
    world_size: int,
    host: str,
    results: Mapping[int, Any],
    stacks: Mapping[int, str],
    plans: Mapping[int, ReplicaPlan],
    pids: Mapping[int, int],
    memory: OomFinding,
    places: Sequence[RankPlace] = (),
) -> ReplicaTimeout:
    """Build the exception; its attributes describe the first of the ranks that were waited for.

    ``overdue`` names processes, each by its first rank, as do ``plans`` and ``pids``. ``places``
    are those of all ranks when the limit had passed.
    """
    finding = _finding(overdue, places, stacks)
    overdue = replace(
        overdue,
        ranks=tuple(rank for first in overdue.ranks for rank in spread(plans[first], None)),
        finished=tuple(rank for first in overdue.finished for rank in spread(plans[first], None)),
    )
    # Ranks that have finished wait for the others in functions of xmp's: not worth showing.
    done = () if overdue.at_the_end else overdue.finished
    shown = {rank: text for rank, text in stacks.items() if rank not in done}
    parts = [
        f"{overdue.name}={seconds(overdue.limit)}: {_head(finding, overdue, world_size, host)}",
        memory.found(killed=False),  # the ranks may have waited for a process that was killed
        *([_STACKS] if shown else []),
        *grouped(shown, whole="error.stacks"),
    ]
    known = finding.words and finding.tells
    if overdue.name == HANG and not known and not overdue.diverged and not overdue.at_the_end:
        parts.append(_BUSY)
    error = ReplicaTimeout("\n\n".join(filter(None, parts)), code=_code(overdue))
    error.host, error.suspects = host, finding.suspects
    error.rank = next((rank for rank in finding.suspects if rank in plans), overdue.ranks[0])
    error.local_rank, error.pid = plans[error.rank].local_rank, pids[error.rank]
    for failure in failures:
        if failure.rank == error.rank:
            error.exit_code, error.signal_name = failure.exit_code, failure.signal_name
    error.failures, error.results, error.stacks = tuple(failures), dict(results), dict(stacks)
    return error


def _finding(overdue: Overdue, places: Sequence[RankPlace], stacks: Mapping[int, str]) -> Finding:
    """Return who the others wait for; nothing where the limit says it all."""
    if overdue.name == START or overdue.at_the_end:
        return Finding()
    return found(places, stacks)


def _head(finding: Finding, overdue: Overdue, world_size: int, host: str) -> str:
    """Return the first lines: who is waited for, if that is known, and what the limit is."""
    words = _words(overdue, world_size, host)
    if not finding.words or (not finding.tells and overdue.finished):
        return words
    first, second = (finding.words, words) if finding.tells else (words, finding.words)
    return f"{first}\n{second[0].upper()}{second[1:]}"


def seconds(nanoseconds: int) -> str:
    """Return nanoseconds in seconds as the user writes them: ``2.5``."""
    return f"{nanoseconds / 1e9:g}"


def _code(overdue: Overdue) -> str:
    if overdue.name == START:
        return "XMP-T02"
    if overdue.diverged and not overdue.at_the_end:
        return "XMP-T04"
    return "XMP-T03" if overdue.name == HANG else "XMP-T01"


def _words(overdue: Overdue, world_size: int, host: str) -> str:
    limit, waited = seconds(overdue.limit), f"{ranks(overdue.ranks)} of {world_size} on {host}"
    if overdue.at_the_end:
        return (
            f"every function has returned, but {waited} did not end\n"
            "A non-daemon thread, an exit handler or the framework's shutdown still runs."
        )
    if overdue.name == START:
        return f"{waited} had not reached the function {limit} s after the call"
    if overdue.diverged:
        had = f"{ranks(overdue.finished)} had finished while {waited} waited"
        return f"{had}: no progress for {limit} s\n{DIVERGED.capitalize()}."
    if overdue.name == HANG:
        return f"no progress for {limit} s: {waited} still running"
    finished = f", {ranks(overdue.finished)} had finished" if overdue.finished else ""
    return f"not done {limit} s after the call: {waited} still running{finished}"
