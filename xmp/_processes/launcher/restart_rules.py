"""Which failures another attempt may mend (``max_restarts``), and when it begins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xmp._rules.limits import TOTAL
from xmp._words.errors import ReplicaError, ReplicaTimeout

if TYPE_CHECKING:
    from xmp._processes.messages.order import Failure

    from .outcome import Outcome

__all__ = ["CANNOT_HELP", "Fault", "fault_of", "may_mend", "passes", "rest"]

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


def fault_of(failure: Failure, began: int, returned: bool) -> Fault | None:
    """The fault of an attempt that ``failure`` has ended; None where the next may fare better.

    ``began``: when it was called, in monotonic nanoseconds. ``returned``: a replica has returned,
    which is progress.
    """
    if failure.kind != "raised" or passes(failure) or returned or failure.at - began > _EARLY:
        return None
    places = _PLACE.findall(failure.traceback)
    if not places:
        return None
    message = _ADDRESS.sub("0x…", failure.message)  # as in the repr of objects
    return Fault(failure.error_type, message, places[-1])


def passes(failure: Failure) -> bool:
    """Whether machine, network or another process may have caused it, and it may be over later."""
    if failure.kind != "raised":
        return failure.signal_name is not None
    if isinstance(failure.exception, (OSError, MemoryError)):
        return True
    named = failure.error_type.rpartition(".")[2] in _PASSING
    return named or _SAID.search(failure.message) is not None


def rest(failure: Failure, restarts: int) -> float:
    """Seconds before the next attempt, after so many restarts: 1, 2, 4 … for what may pass."""
    return min(2.0 ** min(restarts, 9), _LONGEST_REST) if passes(failure) else 0.0


def may_mend(outcome: Outcome, error: BaseException, failures: Sequence[Failure] = ()) -> bool:
    """Whether another attempt may succeed, and the user has not asked for this end.

    ``failures``, the cause first, stand for those of an outcome that is not known yet.
    """
    if isinstance(error, ReplicaTimeout):
        return outcome.overdue is not None and outcome.overdue.name != TOTAL
    if isinstance(error, ReplicaError):
        cause = (failures or outcome.failures)[0]
        return not (cause.final or cause.kind == "interrupted" or cause.signal_name == "SIGINT")
    return outcome.orphaned
