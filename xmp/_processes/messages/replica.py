"""The messages between a replica and its supervisor.

Reports go over the replica's own connection. Questions go over a ``Voice``, a connection on which
one thread asks one question at a time, and whose other end the supervisor got with a message. A
replica opens as many voices as it needs, and so does each of its children. Each breakpoint has a
connection of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from xmp._words.types import ReplicaPlan

from .order import LaunchOrder
from .timeline import Timeline

__all__ = [
    "AskPreempted", "AtPost", "Beat", "BreakpointReached", "CallOff", "ExceptionRaised",
    "ExitCalled", "FreshReplicaOrder", "FunctionEntered", "FunctionLeft", "GiveValue", "MakeValue",
    "Meet", "Met", "NoValue", "OpenVoice", "PhaseBegun", "PreemptedAt", "ResultReady", "ReturnTurn",
    "SharedValue", "ShowInCell", "ShownInCell", "Synced", "Synchronise", "TakeTurn",
    "VariablesTaken", "WantValue", "YourTurn",
]  # fmt: skip


# --- replica -> supervisor ----------------------------------------------------------------------


class PhaseBegun(NamedTuple):
    """The replica begins a phase before the user's function; ``at`` in monotonic nanoseconds."""

    name: str
    at: int


class FunctionEntered(NamedTuple):
    """The user's function begins."""


class ResultReady(NamedTuple):
    """The function returned; without ``data`` and ``size``, None.

    Descriptors: the memory file of a large result.
    """

    at: int
    data: bytes | None
    size: int
    timeline: Timeline
    imported: list[str]
    at_post: bool
    """True: the replica, of a gang, is at its post; no ``AtPost`` follows."""


class ExitCalled(NamedTuple):
    """The function ended by SystemExit."""

    at: int
    code: int
    timeline: Timeline
    words: str = ""
    """The call in words: ``sys.exit(3)``."""
    traceback: str = ""
    """The traceback of the exit, unless it was a success."""


class ExceptionRaised(NamedTuple):
    """The function, or code of the replica before or after it, raised."""

    at: int
    rank: int
    """The rank of the thread replica that raised; -1: the first replica of the process."""
    error_type: str
    message: str
    traceback: str
    exception: bytes | None
    """The pickled exception, if it can be pickled."""
    unsent: str
    """Why the exception cannot be pickled."""
    interrupted: bool
    """Whether it is a KeyboardInterrupt."""
    final: bool
    """Whether a restart cannot help: the function's result cannot be sent."""
    timeline: Timeline


class AtPost(NamedTuple):
    """The replica of a gang is done with a call, has written its output, and waits for the next."""

    number: int
    """The number of the call."""


class VariablesTaken(NamedTuple):
    """The variables of the user's innermost frames, as JSON; sent after ``ExceptionRaised``."""

    rank: int
    """As in ``ExceptionRaised``."""
    text: str


class BreakpointReached(NamedTuple):
    """A rank wants the terminal. Descriptors: the debugger's connection."""

    rank: int


class FunctionLeft(NamedTuple):
    """The function of a thread replica has returned; other replicas report only the result."""

    local_rank: int


class OpenVoice(NamedTuple):
    """The replica, or a child of it, is about to ask. Descriptors: the supervisor's end."""

    local_rank: int


# --- on a voice: questions, and what follows from their answers -----------------------------------


class AskPreempted(NamedTuple):
    """``preempted()`` was called for the ``calls``-th time; ``PreemptedAt`` answers.

    With 0 calls, the sender only looks, as children do, and takes no part in the vote.
    """

    calls: int
    wants_flag: bool


class WantValue(NamedTuple):
    """Request for a shared value; ``MakeValue``, ``SharedValue`` or ``NoValue`` answers."""

    key: str
    owner: int
    """The local rank that makes it; -1: the first to ask."""
    kept: bool
    """Whether to keep it for all later requests, not just until every replica has it."""


class GiveValue(NamedTuple):
    """The value that this voice has made (``good``), or the exception that making it raised.

    Descriptors: the memory file of a large value.
    """

    good: bool
    data: bytes | None
    size: int


class TakeTurn(NamedTuple):
    """Wait for the turn of this key; ``YourTurn`` answers."""

    key: str


class ReturnTurn(NamedTuple):
    """The turn that this voice has is over."""


class Meet(NamedTuple):
    """Wait until other local replicas have sent the same; ``Met`` answers."""

    key: str
    local_ranks: list[int]
    """All that take part, the sender too."""
    nanoseconds: int
    """The longest wait for them."""


class CallOff(NamedTuple):
    """This replica refuses the collective that others wait for; no answer.

    Their ``Meet`` of the same key is answered with these words.
    """

    key: str
    words: str


class Beat(NamedTuple):
    """A child that does not share the replica's memory makes progress."""


class ShowInCell(NamedTuple):
    """Something to display in the notebook's cell, after what the replica has written so far.

    ``ShownInCell`` answers.
    """

    kind: str
    """"display"; "update" the display with this ``display_id``; "clear" the cell, or "clear and
    wait"."""
    display_id: str
    types: list[str]
    """The MIME types; ``texts`` has the data of each: images in base64, JSON as text."""
    texts: list[str]
    metadata: str
    """A JSON object, or an empty string."""


# --- supervisor -> replica; all but the first answer a question ----------------------------------


class FreshReplicaOrder(NamedTuple):
    """The first message to a fresh interpreter, which has inherited no memory.

    Descriptors: the records, the call's image, the resource
    tracker, the leases (first local rank only), those of the arguments.
    """

    order: LaunchOrder
    plan: ReplicaPlan
    environment: dict[str, str]


class PreemptedAt(NamedTuple):
    """The call at which ``preempted()`` turns true, or 0: not decided. Descriptors: the flag."""

    step: int


class MakeValue(NamedTuple):
    """The receiver is to make the value for all."""


class SharedValue(NamedTuple):
    """The value, or the exception that making it raised. Descriptors: a large one's memory file."""

    good: bool
    data: bytes | None
    size: int


class NoValue(NamedTuple):
    """The value will not come: the replica that would make it has left its function."""

    owner: int
    """The local rank of that replica."""


class ShownInCell(NamedTuple):
    """The display of ``ShowInCell`` has been passed on."""


class YourTurn(NamedTuple):
    """The voice has the turn."""


class Met(NamedTuple):
    """The end of a ``Meet``."""

    words: str
    """The ranks that have not come, in words; empty: all have."""


# --- on the debugger's connection, with launch.AnswerDebugger and launch.DebuggerLeft ------------


class Synchronise(NamedTuple):
    """Pass on what the replica has written so far, before a prompt; ``Synced`` answers."""


class Synced(NamedTuple):
    """Everything that the replica had written has been passed on."""
