"""From failures to the one exception that the launcher raises, the cause first."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from xmp._errors import ReplicaDied, ReplicaError, ReplicaRaised, StartError

from . import showing as showing  # an error of ours knows how notebooks show it
from .exceptions import load_exception
from .memory import Memory
from .order import Failure
from .wording import text

__all__ = ["build", "not_loaded"]


def not_loaded(text: str, words: str, pickled: bytes | None) -> StartError:
    """The exception for a function or arguments that cannot be loaded."""
    error = StartError(f"loading the function and its arguments failed: {words}\n\n{text.rstrip()}")
    error.__cause__ = load_exception(pickled)
    return error


def build(
    failures: Sequence[Failure],
    world_size: int,
    host: str,
    results: Mapping[int, Any],
    stacks: Mapping[int, str],
    memory: Memory,
) -> ReplicaError:
    """The exception for a launch with these failures; the first one is the cause."""
    for failure in failures:
        failure.exception = failure.exception or load_exception(failure.pickled)
        failure.why = memory.why(failure)
    cause = failures[0]
    raised = cause.kind == "raised"
    kind = _also_torchs(ReplicaRaised if raised else ReplicaDied)
    error: ReplicaError = kind(text(cause, failures[1:], world_size, host, results, memory))
    error.rank, error.local_rank, error.host, error.pid = (
        cause.rank, cause.local_rank, host, cause.pid,
    )  # fmt: skip
    error.exit_code, error.signal_name = cause.exit_code, cause.signal_name
    error.failures, error.results, error.stacks = tuple(failures), dict(results), dict(stacks)
    error.__cause__ = cause.exception
    return error


_mixed: dict[tuple[type, type], type[ReplicaError]] = {}


def _both(kind: type[ReplicaError], other: type[Exception]) -> type[ReplicaError]:
    """A class that is ours and torch's; it pickles as ours."""

    def reduce(self: ReplicaError) -> tuple[Any, ...]:
        return _restore, (kind, self.args, self.__dict__)

    if (kind, other) not in _mixed:
        namespace = {"__module__": "xmp", "__reduce__": reduce, "__doc__": kind.__doc__}
        _mixed[kind, other] = type(kind.__name__, (kind, other), namespace)
    return _mixed[kind, other]


def _restore(kind: type[ReplicaError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind(*args)
    error.__dict__.update(state)
    return error


def _also_torchs(kind: type[ReplicaError]) -> type[ReplicaError]:
    """Where torch is loaded, ``except ProcessRaisedException`` catches our error as well."""
    spawn = sys.modules.get("torch.multiprocessing.spawn")
    if spawn is None:
        return kind
    name = "ProcessRaisedException" if kind is ReplicaRaised else "ProcessExitedException"
    return _both(kind, getattr(spawn, name))
