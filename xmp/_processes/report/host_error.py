"""Failures of other hosts: described to be sent, and built as exceptions in other launchers."""

from __future__ import annotations

from typing import Any

from xmp._processes.messages.order import Failure
from xmp._rules.watch import CAUSE
from xmp._words import errors
from xmp._words.errors import HostLost, ReplicaError, XmpError
from xmp._words.host_words import HostFailure

from .replica_error import also_torchs

__all__ = ["build", "described"]

_OF_REPLICAS = ("ReplicaRaised", "ReplicaDied", "ReplicaTimeout")


def described(error: BaseException, symptom: bool) -> HostFailure:
    """Describe how the launch has failed here; a ``symptom`` may have its cause on another host."""
    if not isinstance(error, ReplicaError):
        name, text = type(error).__name__, str(error)
        if not isinstance(error, XmpError):
            text = f"{name} was raised in its launcher" + (f": {text}" if text else "")
        return HostFailure(kind=name, text=text or name, symptom=symptom)
    kind = next((name for name in _OF_REPLICAS if isinstance(error, getattr(errors, name))), "")
    return HostFailure(
        rank=error.rank,
        local_rank=error.local_rank,
        pid=error.pid,
        kind=kind or "ReplicaDied",
        text=str(error),
        exit_code=error.exit_code or 0,
        signal_name=error.signal_name or "",
        symptom=symptom,
        **_cause(error),
    )


def _cause(error: ReplicaError) -> dict[str, Any]:
    if not error.failures:  # a time limit has no cause
        return {}
    cause: Any = error.failures[0]
    return {
        "how": cause.kind,
        "error_type": cause.error_type,
        "message": cause.message,
        "traceback": cause.traceback,
    }


def build(failure: HostFailure) -> XmpError:
    """Build the exception for a launch that another host's failure has ended."""
    if failure.kind not in _OF_REPLICAS:
        lost = failure.kind == "HostLost"
        where = f"host {failure.host} ({failure.name})"
        # Without a code of its own, its text has that of the error there.
        error = HostLost(failure.text if lost else f"on {where}: {failure.text}")
        error.host, error.host_index = failure.name, failure.host
        return error
    kind = getattr(errors, failure.kind)
    found: ReplicaError = also_torchs(kind)(failure.text)  # it names the host
    found.host, found.pid = failure.name, failure.pid
    found.rank, found.local_rank = failure.rank, failure.local_rank
    found.exit_code, found.signal_name = failure.exit_code or None, failure.signal_name or None
    if failure.how:
        found.failures = (_recorded(failure),)
    return found


def _recorded(failure: HostFailure) -> Failure:
    """Return the record of a replica of another host; its exception object is not sent."""
    return Failure(
        rank=failure.rank,
        local_rank=failure.local_rank,
        pid=failure.pid,
        kind=failure.how,
        label=CAUSE,
        exit_code=failure.exit_code or None,
        signal_name=failure.signal_name or None,
        error_type=failure.error_type,
        message=failure.message,
        traceback=failure.traceback,
        final=failure.final,
    )
