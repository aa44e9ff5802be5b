"""Checks that the content of a well-formed message can be true of the replica that has sent it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import Any

from xmp._processes.messages import replica as messages
from xmp._processes.messages.order import PHASES
from xmp._processes.messages.plain_format import Malformed
from xmp._processes.messages.untrusted import Arrived
from xmp._processes.system import linux
from xmp._processes.system.descriptors import close_all

from .replica_handle import ReplicaHandle

__all__ = ["check", "names_of_modules"]

_BY_CHILDREN = (messages.OpenVoice, messages.BreakpointReached)
"""Messages that a replica's child may send: a DataLoader's worker may ask, or be debugged.

No child reports for the replica itself: a child that was forked within the user's function and runs
on to its end would be taken for the replica.
"""
_REPORTS = (
    messages.PhaseBegun, messages.FunctionEntered, messages.ResultReady, messages.ExitCalled,
    messages.ExceptionRaised, messages.VariablesTaken,
)  # fmt: skip
_DATED = (
    messages.PhaseBegun, messages.ResultReady, messages.ExitCalled, messages.ExceptionRaised,
)  # fmt: skip
_MOST_REPORTS = 64
"""The most reports of a replica, which sends fewer than ten: the launcher may not read for hours,
and they wait here."""
_LONGEST_KEY = 64 * 1024
_LONGEST_MEETING = 128
_LONGEST_WORDS = 32 * 1024
_MOST_RANKS = 64 * 1024
_LARGEST = 2**62
_LONGEST_VARIABLES = 32 * 1024
_MOST_MODULES = 10_000
_LONGEST_MODULE = 1024
_CLOCKS_DIFFER = 1_000_000_000
"""Nanoseconds by which the clocks of two cores may differ on some virtual machines."""


def check_question(arrived: Arrived) -> None:
    """Raise Malformed, and close the message's descriptors, if no voice of xmp sends it."""
    message, descriptors = arrived.message, arrived.descriptors
    try:
        rule = _QUESTIONS.get(type(message))
        if rule is None:
            raise Malformed(f"no voice of a replica sends a {type(message).__name__}")
        _check_files(message, descriptors, rule(message) or 0)
    except Malformed:
        close_all(descriptors)
        raise


def check(arrived: Arrived, replica: ReplicaHandle) -> Arrived | None:
    """Return the message to be handled; None, with its descriptors closed, to ignore it.

    Raises Malformed if no replica of xmp sends it on its own connection.
    """
    message, descriptors, _, by_child = arrived
    try:
        if by_child and not isinstance(message, _BY_CHILDREN):
            close_all(descriptors)
            return None
        rule = _RULES.get(type(message))
        if rule is None:
            raise Malformed(f"no replica sends a {type(message).__name__}")
        if isinstance(message, _REPORTS):
            replica.reports += 1
            _need(replica.reports <= _MOST_REPORTS, "it is one of too many reports")
        _check_files(message, descriptors, rule(message, replica) or 0)
    except Malformed:
        close_all(descriptors)
        raise
    return _dated(arrived) if isinstance(message, _DATED) else arrived


def names_of_modules(names: Sequence[str]) -> list[str]:
    """Return the names that a template may try to import, and show; drop the others.

    Names are a hint, so a strange one ends no launch: a module may have any name (rich 15 has one
    that ends in ``unicode17-0-0``). A trial imports it, and no name leads out of ``sys.path``.
    """
    known = names[:_MOST_MODULES]
    return [name for name in known if 0 < len(name) <= _LONGEST_MODULE and name.isprintable()]


def _need(true: bool, otherwise: str) -> None:
    if not true:
        raise Malformed(otherwise)


# --- values: each rule returns how many descriptors belong to the message ------------------------


def _dated(arrived: Arrived) -> Arrived:
    """Replace times that cannot be true by the present time.

    The program may have another clock by then: freezegun replaces ``time.monotonic_ns``.
    """
    message: Any = arrived.message
    now = time.monotonic_ns()

    def possible(at: int) -> int:
        return at if 0 <= at <= now + _CLOCKS_DIFFER else now

    timeline = getattr(message, "timeline", None)
    for name, at in vars(timeline).items() if timeline is not None else ():
        setattr(timeline, name, possible(at))
    return arrived._replace(message=message._replace(at=possible(message.at)))


def _rank(rank: int, replica: ReplicaHandle) -> None:
    _need(rank in replica.ranks, f"rank {rank} is another replica's")


def _local_rank(local_rank: int, replica: ReplicaHandle) -> None:
    _need(local_rank in replica.local_ranks, f"local rank {local_rank} is another replica's")


def _phase(message: messages.PhaseBegun, _: ReplicaHandle) -> None:
    _need(message.name in PHASES, "there is no such phase")


def _value(message: messages.ResultReady | messages.GiveValue) -> int:
    data, size = message.data, message.size
    if data is None:
        _need(size > 0, f"its size is {size}")
        return 1
    _need(size == len(data), f"its size is {size}, but it has {len(data)} bytes")
    return 0


def _result(message: messages.ResultReady) -> int:
    return 0 if message.data is None and message.size == 0 else _value(message)


def _exit(message: messages.ExitCalled, _: ReplicaHandle) -> None:
    _need(0 <= message.code <= 255, f"{message.code} is no exit code")


def _raised(
    message: messages.ExceptionRaised | messages.VariablesTaken, replica: ReplicaHandle
) -> None:
    if message.rank != -1:
        _rank(message.rank, replica)


def _variables(message: messages.VariablesTaken, replica: ReplicaHandle) -> None:
    _raised(message, replica)
    _need(len(message.text) <= _LONGEST_VARIABLES, f"it has {len(message.text)} characters")


def _breakpoint(message: messages.BreakpointReached, replica: ReplicaHandle) -> int:
    _rank(message.rank, replica)
    return 1


def _left(message: messages.FunctionLeft, replica: ReplicaHandle) -> None:
    _local_rank(message.local_rank, replica)


def _voice(message: messages.OpenVoice, replica: ReplicaHandle) -> int:
    _local_rank(message.local_rank, replica)
    return 1


def _at_post(message: messages.AtPost, _: ReplicaHandle) -> None:
    _need(0 <= message.number < _LARGEST, f"{message.number} is no call")


def _step(message: messages.AskPreempted) -> None:
    _need(0 <= message.calls < _LARGEST, f"it counts {message.calls} calls")


def _display(message: messages.ShowInCell) -> None:
    from xmp._processes.messages.cell_frames import problem  # for notebooks only

    _need(not (why := problem(message)), why)


def _of_key(message: messages.TakeTurn | messages.WantValue | messages.CallOff) -> None:
    _need(len(message.key) <= _LONGEST_KEY, f"its key has {len(message.key)} characters")


def _meeting(message: messages.Meet) -> None:
    _need(len(message.key) <= _LONGEST_MEETING, f"its key has {len(message.key)} characters")
    _need(len(message.local_ranks) <= _MOST_RANKS, f"it names {len(message.local_ranks)} ranks")
    _need(0 <= message.nanoseconds < _LARGEST, f"it waits {message.nanoseconds} ns")


def _call_off(message: messages.CallOff) -> None:
    _of_key(message)
    _need(len(message.words) <= _LONGEST_WORDS, f"its words have {len(message.words)} characters")


_RULES: dict[Any, Callable[[Any, ReplicaHandle], int | None]] = {
    messages.PhaseBegun: _phase,
    messages.FunctionEntered: lambda _, __: 0,
    messages.ResultReady: lambda message, _: _result(message),
    messages.ExitCalled: _exit,
    messages.ExceptionRaised: _raised,
    messages.VariablesTaken: _variables,
    messages.BreakpointReached: _breakpoint,
    messages.FunctionLeft: _left,
    messages.AtPost: _at_post,
    messages.OpenVoice: _voice,
}
_QUESTIONS: dict[Any, Callable[[Any], int | None]] = {
    messages.AskPreempted: _step,
    messages.WantValue: _of_key,
    messages.GiveValue: _value,
    messages.TakeTurn: _of_key,
    messages.ReturnTurn: lambda _: 0,
    messages.Meet: _meeting,
    messages.CallOff: _call_off,
    messages.Beat: lambda _: 0,
    messages.ShowInCell: _display,
}


# --- files --------------------------------------------------------------------------------------


def _check_files(message: Any, descriptors: Sequence[int], count: int) -> None:
    _need(len(descriptors) == count, f"it has {len(descriptors)} descriptors, not {count}")
    if count and hasattr(message, "size"):
        _check_file(descriptors[0], message.size)


def _check_file(descriptor: int, size: int) -> None:
    """Raise Malformed unless it is a file of at least that size; do not read it.

    A process that maps a file which is shorter dies of SIGBUS, and one that opens a FIFO waits for
    its writer.
    """
    if linux.seals_of(descriptor) is None and linux.has_memory_files():
        raise Malformed("its descriptor is no memory file")
    found = os.fstat(descriptor)
    _need(stat.S_ISREG(found.st_mode), "its descriptor is no file")
    _need(found.st_size >= size, f"its file has {found.st_size} bytes, not {size}")
