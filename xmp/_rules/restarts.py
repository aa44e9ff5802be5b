"""The rules of ``max_restarts``: which failures another attempt may mend, and when it begins.

Pure: an attempt that has failed goes in, a refusal or a time comes out. Times are monotonic
nanoseconds. ``timeout`` counts for all attempts together, without the time for which they were
paused. The launchers of several hosts have to decide alike, and only one of them knows the failure:
there the rules that look at it are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from xmp._words.errors import ReplicaError, ReplicaFailure, ReplicaTimeout

from .limits import TOTAL, Overdue

__all__ = [
    "CANNOT_HELP", "Cause", "FailedAttempt", "Fault", "RestartRules", "fault_of", "may_mend",
    "passes", "rest",
]  # fmt: skip

CANNOT_HELP = (
    "restarting cannot help: the same exception at the same line, twice within 60 s of the start"
)
_EARLY = 60 * 10**9
_LONGEST_REST = 60.0
_PASSING = {
    *("OSError", "BlockingIOError", "ChildProcessError", "ConnectionError", "BrokenPipeError"),
    *("ConnectionAbortedError", "ConnectionRefusedError", "ConnectionResetError", "TimeoutError"),
    *("FileExistsError", "FileNotFoundError", "InterruptedError", "IsADirectoryError"),
    *("NotADirectoryError", "PermissionError", "ProcessLookupError", "gaierror", "herror"),
    *("MemoryError", "OutOfMemoryError"),  # Python's, torch's
    *("DistNetworkError", "DistStoreError", "DistBackendError"),  # torch.distributed's
}
"""Types of exceptions that the machine or the network may cause, and not the program."""
_SAID = re.compile(r"\b(UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED):|out of memory", re.I)
"""How compilers and drivers of devices say the same in exceptions of one type for everything."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_PLACE = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """An exception that the program itself has caused at its start, to compare two attempts."""

    kind: str
    message: str
    place: tuple[str, str]
    """File and line of the innermost frame."""


def fault_of(failure: ReplicaFailure, began: int, returned: bool) -> Fault | None:
    """Return the fault of an attempt that ``failure`` has ended; None where the next may do better.

    ``began``: when it was called. ``returned``: a replica has returned, which is progress.
    """
    if failure.kind != "raised" or passes(failure) or returned or failure.at - began > _EARLY:
        return None
    places = _PLACE.findall(failure.traceback)
    if not places:
        return None
    message = _ADDRESS.sub("0x…", failure.message)  # as in the repr of objects
    return Fault(failure.error_type, message, places[-1])


def passes(failure: ReplicaFailure) -> bool:
    """Return whether the machine, the network or another process may have caused it."""
    if failure.kind != "raised":
        return failure.signal_name is not None
    if isinstance(failure.exception, (OSError, MemoryError)):
        return True
    named = failure.error_type.rpartition(".")[2] in _PASSING
    return named or _SAID.search(failure.message) is not None


def rest(failure: ReplicaFailure, restarts: int) -> float:
    """Return the seconds before the next attempt, after so many: 1, 2, 4 … for what may pass."""
    return min(2.0 ** min(restarts, 9), _LONGEST_REST) if passes(failure) else 0.0


@dataclass(frozen=True)
class FailedAttempt:
    """What is known of an attempt when it has ended with an error."""

    began: int
    paused_for: int = 0
    """The time for which it was paused."""
    ended_by_user: bool = False
    """Whether the program or its user has ended the launch."""
    mends: bool = True
    """Whether another attempt may succeed (``may_mend``)."""
    cause: ReplicaFailure | None = None
    """The failure of the replica that its error is about; None of other errors."""
    returned: bool = False
    """Whether a replica has returned."""
    alone: bool = True
    """Whether this launcher decides alone, and not with those of other hosts."""


class RestartRules:
    """The attempts of one call: whether another follows one that has failed, and when."""

    def __init__(self, most: int, total: int | None = None, called: int = 0) -> None:
        self._most, self._total, self._called = most, total, called
        self.made = 0
        """The attempts after the first."""
        self.paused_for = 0
        """The time for which the attempts before this one were paused."""
        self.hopeless = ""
        """Why none follows although some are left; empty if one does."""
        self.begins: int | None = None
        """When the next attempt begins, once that is settled."""
        self._fault: Fault | None = None

    @property
    def first(self) -> int:
        """The time from which ``timeout`` counts for the next attempt."""
        return self._called + self.paused_for

    def refusal(self, failed: FailedAttempt, now: int) -> str:
        """Return why no attempt follows; empty if one does."""
        end = None
        if self._total is not None:
            end = self.first + failed.paused_for + self._total
        if failed.ended_by_user:
            return "the program or its user has ended the launch"
        if self.made >= self._most:
            return f"max_restarts={self._most} are made"
        if end is not None and now >= end:
            return "timeout= is over"
        if not failed.mends:
            return "the next attempt would fail in the same way"
        self.hopeless = self._hopeless(failed, now, end) if failed.alone else ""
        return self.hopeless

    def _hopeless(self, failed: FailedAttempt, now: int, end: int | None) -> str:
        if self._fault is not None and _fault(failed) == self._fault:
            return CANNOT_HELP
        pause = self.pause(failed)
        if self.begins is not None or end is None or now + pause * 1e9 < end:
            return ""
        timeout = (self._total or 0) / 1e9
        return f"not restarted: timeout={timeout:g} is over before that, in {pause:g} s"

    def pause(self, failed: FailedAttempt) -> float:
        """Return the seconds before the next attempt."""
        return 0.0 if failed.cause is None else rest(failed.cause, self.made)

    def settle(self, failed: FailedAttempt, now: int) -> int:
        """Note that the next attempt begins after its pause. Return that time."""
        self.begins = now + int(self.pause(failed) * 1e9)
        return self.begins

    def restarted(self, failed: FailedAttempt) -> None:
        """Note that the next attempt is made."""
        self.begins, self._fault = None, _fault(failed)
        self.made += 1
        self.paused_for += failed.paused_for


def _fault(failed: FailedAttempt) -> Fault | None:
    if failed.cause is None:
        return None
    return fault_of(failed.cause, failed.began, failed.returned)


class Cause(ReplicaFailure, Protocol):
    """The failure of a replica that this launcher has taken in."""

    @property
    def final(self) -> bool:
        """Whether another attempt would end in the same way."""


class Known(Protocol):
    """What is known of a launch that has failed."""

    @property
    def overdue(self) -> Overdue | None: ...
    @property
    def failures(self) -> Sequence[Cause]: ...
    @property
    def orphaned(self) -> bool: ...


def may_mend(known: Known, error: BaseException, failures: Sequence[Cause] = ()) -> bool:
    """Return whether another attempt may succeed, and the user has not asked for this end.

    ``failures``, the cause first, stand for those of a launch that are not known yet.
    """
    if isinstance(error, ReplicaTimeout):
        return known.overdue is not None and known.overdue.name != TOTAL
    if isinstance(error, ReplicaError):
        cause = (failures or known.failures)[0]
        return not (cause.final or cause.kind == "interrupted" or cause.signal_name == "SIGINT")
    return known.orphaned
