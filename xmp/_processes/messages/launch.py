"""The messages between launcher and supervisor about one launch."""

from __future__ import annotations

from typing import NamedTuple

from xmp._rules.limits import Overdue
from xmp._words.record import RankPlace

from .order import Failure, LaunchOrder
from .timeline import Timeline

__all__ = [
    "AnswerDebugger", "AtBreakpoint", "CallOver", "CannotMake", "DebuggerLeft", "Done", "EndCall",
    "Events", "FailedFirst", "Interrupt", "InterruptDebugger", "Kill", "LeavePosts", "LoadFailed",
    "Pause", "Preempt", "PreemptAnswer", "PreemptElsewhere", "ProgressElsewhere", "ProgressMade",
    "ProposedStep", "ReplicaEnded", "ReplicaEntered", "ReplicaPhase", "ReplicaReturned",
    "ReplicasStarted", "Resume", "RunCall", "SetGrace", "StackTexts", "StartLaunch", "StepReached",
    "Stop", "TakeStacks", "UnsafeToFork", "WaitedLong",
]  # fmt: skip


# --- launcher -> supervisor ---------------------------------------------------------------------


class StartLaunch(NamedTuple):
    """The first message. Its descriptors are listed in ``LaunchOrder``."""

    order: LaunchOrder


class RunCall(NamedTuple):
    """The next call of a gang, whose replicas are at their posts; ``CallOver`` answers, or
    ``Done``.

    Descriptors: the memory file, if ``data`` is None, then those of the arguments. The supervisor
    passes it on to the replicas unopened.
    """

    number: int
    """From 1 up; the call that came with the order is 0."""
    code: bytes
    """A hash of the function's code; empty if it has none."""
    data: bytes | None
    size: int
    called: int
    """Monotonic nanoseconds of the user's call."""
    total: int
    """The call's ``timeout`` in nanoseconds; 0: none."""
    hang: int
    """Its ``hang_timeout`` in nanoseconds; 0: none."""


class EndCall(NamedTuple):
    """Ctrl-C in a gang's call: end the call, and keep the replicas."""

    votes: bool
    """Let replicas that call ``preempted()`` end by themselves; ``PreemptAnswer`` answers."""


class LeavePosts(NamedTuple):
    """No call follows: the replicas of a gang run their exit handlers and end."""


class Interrupt(NamedTuple):
    """Ctrl-C: SIGINT to the replicas, then SIGTERM and SIGKILL."""


class Stop(NamedTuple):
    """End all replicas in order: SIGTERM, grace, SIGKILL."""


class Kill(NamedTuple):
    """End all replicas at once."""


class Pause(NamedTuple):
    """Ctrl-Z: stop the replicas too; no deadline runs."""


class Resume(NamedTuple):
    """``fg``: continue the replicas."""


class SetGrace(NamedTuple):
    """``join(grace_period=...)``: seconds between a failure and SIGTERM, and on to SIGKILL."""

    seconds: float


class TakeStacks(NamedTuple):
    """Take the stacks of all live replicas; ``StackTexts`` answers."""


class Preempt(NamedTuple):
    """The launcher has received SIGTERM; ``PreemptAnswer`` answers."""


class PreemptElsewhere(NamedTuple):
    """Another host is about to be taken away; ``StepReached`` with round 0 answers."""


class ProposedStep(NamedTuple):
    """The call of ``preempted()`` at which all hosts may end.

    If it is not final, ``StepReached`` answers.
    """

    round: int
    step: int
    final: bool


class ProgressElsewhere(NamedTuple):
    """Replicas of another host have made progress (``hang_timeout``)."""


class AnswerDebugger(NamedTuple):
    """The launcher lends its terminal to a rank at a breakpoint, or refuses and says why.

    The supervisor passes the message on to the replica. Descriptors, if lent: one to read from and
    one to write to.
    """

    rank: int
    refusal: str = ""
    """Empty if lent."""


class InterruptDebugger(NamedTuple):
    """Ctrl-C while a replica has the terminal."""


# --- supervisor -> launcher ---------------------------------------------------------------------


class ReplicasStarted(NamedTuple):
    """All replicas have been forked; times are monotonic nanoseconds."""

    supervisor: int
    replicas: list[tuple[int, int, int]]
    """(rank, pid, time of the fork)."""
    received: int
    loaded: int


class ReplicaPhase(NamedTuple):
    """A replica begins a phase before the user's function: one of ``order.PHASES``."""

    rank: int
    name: str


class ReplicaEntered(NamedTuple):
    """The user's function begins; ``at`` in monotonic nanoseconds."""

    rank: int
    at: int


class ReplicaReturned(NamedTuple):
    """The user's function returned. A small result is ``data``, a large one a memory file.

    Descriptors: the memory file, if ``data`` is None and ``size`` is not 0.
    """

    rank: int
    data: bytes | None
    size: int
    timeline: Timeline
    imported: list[str]
    """Installed modules that the first replica had to import itself."""


class ReplicaEnded(NamedTuple):
    """A replica's process has ended: exit code (negative: signal), peak resident size in bytes."""

    rank: int
    exit_code: int
    peak: int


class Events(NamedTuple):
    """The events of one turn of the supervisor's loop, ordered by time.

    Sent only if the launch has ``events=``.
    """

    records: list[tuple[object, ...]]
    """For each event: name, monotonic nanoseconds, and then as far as they are known: rank, pid,
    message, exit code, name of the signal."""


class StackTexts(NamedTuple):
    """The Python stacks of live replicas, by rank."""

    by_rank: dict[int, str]
    places: list[RankPlace] = []
    """Where each rank is, without its stack."""


class PreemptAnswer(NamedTuple):
    """True: the replicas ask ``preempted()`` and end by themselves; False: they get SIGTERM."""

    agreed: bool


class StepReached(NamedTuple):
    """The largest number of calls of ``preempted()`` that a replica of this host has made."""

    round: int
    step: int


class WaitedLong(NamedTuple):
    """Replicas of this host have waited long in a collective; the driver asks all who is late."""

    late: bool
    """True: name a replica that has not come even if it works."""


class ProgressMade(NamedTuple):
    """Replicas have made progress (``hang_timeout``); sent only if there are other hosts."""


class AtBreakpoint(NamedTuple):
    """A rank asks for the terminal; ``AnswerDebugger`` answers."""

    rank: int
    pid: int


class DebuggerLeft(NamedTuple):
    """The replica with the terminal continues; ``why`` says why the launch must end, if it must.

    The supervisor passes the replica's message on, or sends one for a replica that has ended.
    """

    why: str


class UnsafeToFork(NamedTuple):
    """A fork is not safe after loading the call. The supervisor ends; nothing was started."""

    culprits: list[str]


class LoadFailed(NamedTuple):
    """The script, the function or an argument could not be loaded. The supervisor ends."""

    traceback: str
    message: str
    exception: bytes | None


class CannotMake(NamedTuple):
    """A process could not be made; those already made have been ended. The supervisor ends."""

    message: str


class FailedFirst(NamedTuple):
    """The launch has failed, while replicas still run: other hosts must not wait for their end.

    Sent only if there are other hosts.
    """

    failure: Failure


class CallOver(NamedTuple):
    """A gang's call is over, and every replica is at its post; the last fields are ``Done``'s."""

    number: int
    results: list[tuple[int, bytes | None, int]]
    """The small ones, which ``ReplicaReturned`` has not brought: rank, data, size."""
    overdue: Overdue | None
    failures: list[Failure]
    stacks: dict[int, str]
    places: list[RankPlace]


class Done(NamedTuple):
    """The last message: no process of the launch is left."""

    overdue: Overdue | None
    failures: list[Failure]
    """The cause first."""
    stacks: dict[int, str]
    """The stacks taken at the first failure, by rank."""
    places: list[RankPlace] = []
    """Where each rank was then, without its stack."""
