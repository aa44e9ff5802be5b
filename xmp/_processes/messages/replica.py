"""What a replica and its supervisor send each other; at a breakpoint on a connection for that.

Questions are numbered and the answer has the number of its question: a signal handler that raises
may leave an answer unread.
"""

from __future__ import annotations

from typing import NamedTuple

from xmp._types import ReplicaPlan

from .order import LaunchOrder
from .timeline import Timeline

__all__ = [
    "AskPreempted", "BreakpointReached", "ExceptionRaised", "ExitCalled", "FreshReplicaOrder",
    "FunctionEntered", "GiveValue", "LastStep", "MakeValue", "PhaseBegun", "PreemptedAt",
    "ResultReady", "ReturnTurn", "SharedValue", "ShowInCell", "ShownInCell", "Synced",
    "Synchronise", "TakeTurn", "VariablesTaken", "WantValue", "WithdrawValue", "YourTurn",
]  # fmt: skip


# --- replica -> supervisor ----------------------------------------------------------------------


class PhaseBegun(NamedTuple):
    """What the replica does now, before the user's function; monotonic nanoseconds."""

    name: str
    at: int


class FunctionEntered(NamedTuple):
    """The user's function begins."""


class ResultReady(NamedTuple):
    """The function returned. Descriptors: the memory file of a large result."""

    at: int
    data: bytes | None
    size: int
    timeline: Timeline
    imported: list[str]


class ExitCalled(NamedTuple):
    """The function ended by SystemExit."""

    at: int
    code: int
    timeline: Timeline
    words: str = ""
    """As it was called: ``sys.exit(3)``."""
    traceback: str = ""
    """Where, unless that was a success."""


class ExceptionRaised(NamedTuple):
    """The function, or what comes before or after it, raised."""

    at: int
    rank: int
    """Of the thread replica that raised; -1: the first replica of the process."""
    error_type: str
    message: str
    traceback: str
    exception: bytes | None
    """The pickled exception, if it can be pickled."""
    interrupted: bool
    """KeyboardInterrupt."""
    final: bool
    """Whether a restart cannot help: the function's result cannot be sent."""
    timeline: Timeline


class VariablesTaken(NamedTuple):
    """After ``ExceptionRaised``: the variables of the user's innermost frames, as JSON."""

    rank: int
    """As in ``ExceptionRaised``."""
    text: str


class BreakpointReached(NamedTuple):
    """A rank wants the terminal. Descriptors: the debugger's connection."""

    rank: int


class AskPreempted(NamedTuple):
    """``preempted()`` was called for the ``calls``-th time; ``PreemptedAt`` answers."""

    number: int
    local_rank: int
    calls: int
    wants_flag: bool


class LastStep(NamedTuple):
    """This thread replica calls ``preempted()`` no more."""

    local_rank: int


class WantValue(NamedTuple):
    """A shared value by its key; ``MakeValue`` or ``SharedValue`` answers."""

    number: int
    key: str
    local_rank: int
    may_make: bool


class GiveValue(NamedTuple):
    """The value was made (``good``), or the exception that making it raised.

    Descriptors: the memory file of a large one.
    """

    key: str
    good: bool
    data: bytes | None
    size: int


class WithdrawValue(NamedTuple):
    """An interrupted replica neither waits for the value nor makes it."""

    key: str
    local_rank: int


class TakeTurn(NamedTuple):
    """Wait for the turn of this key; ``YourTurn`` answers."""

    number: int
    key: str


class ReturnTurn(NamedTuple):
    """The turn is over, or is not wanted any more."""

    key: str


class ShowInCell(NamedTuple):
    """Something to display in the notebook's cell, after what the replica has written so far.

    ``ShownInCell`` answers.
    """

    number: int
    kind: str
    """"display", "update" what has this ``display_id``, "clear" the cell, or "clear and wait"."""
    display_id: str
    types: list[str]
    """The MIME types, and for each its ``texts``: images in base64, JSON as text."""
    texts: list[str]
    metadata: str
    """A JSON object, or an empty string."""


# --- supervisor -> replica ----------------------------------------------------------------------


class FreshReplicaOrder(NamedTuple):
    """The first message to a fresh interpreter, which has inherited no memory.

    Descriptors: heartbeats (if the launch has a ``hang_timeout``), the call's image, the resource
    tracker, the leases (first local rank only), those of the arguments.
    """

    order: LaunchOrder
    plan: ReplicaPlan
    environment: dict[str, str]


class PreemptedAt(NamedTuple):
    """The call at which ``preempted()`` turns true, or 0: not decided. Descriptors: the flag."""

    number: int
    step: int


class MakeValue(NamedTuple):
    """This replica makes the value for all."""

    number: int


class SharedValue(NamedTuple):
    """The value, or the exception that making it raised. Descriptors: a large one's memory file."""

    number: int
    good: bool
    data: bytes | None
    size: int


class ShownInCell(NamedTuple):
    """What was to be displayed has been passed on."""

    number: int


class YourTurn(NamedTuple):
    """The replica has the turn."""

    number: int


# --- on the debugger's connection, with launch.AnswerDebugger and launch.DebuggerLeft ------------


class Synchronise(NamedTuple):
    """Before a prompt: pass on what the replica has written so far; ``Synced`` answers."""


class Synced(NamedTuple):
    """Everything has been passed on."""
