"""From failures to the one exception that the launcher raises, the cause first."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xmp._errors import ReplicaDied, ReplicaError, ReplicaRaised
from xmp._payload import Image, load_image
from xmp._watch import is_victim

from .order import Failure
from .stacks import ranks
from .timeouts import DIVERGED

__all__ = ["build", "load_exception", "what"]

_HINTS = {
    17: "exit code 17 is what legacy torch_xla gives a replica whose function raised",
    134: "a shell's code for SIGABRT",
    137: "a shell's code for SIGKILL, often the kernel out of memory",
    139: "a shell's code for SIGSEGV",
}


def build(
    failures: Sequence[Failure],
    world_size: int,
    host: str,
    results: Mapping[int, Any],
    stacks: Mapping[int, str],
) -> ReplicaError:
    """The exception for a launch with these failures; the first one is the cause."""
    for failure in failures:
        failure.exception = failure.exception or load_exception(failure.pickled)
    cause = failures[0]
    raised = cause.kind == "raised"
    kind = _also_torchs(ReplicaRaised if raised else ReplicaDied)
    error: ReplicaError = kind(_text(cause, failures[1:], world_size, host, results))
    error.rank, error.local_rank, error.host, error.pid = (
        cause.rank, cause.local_rank, host, cause.pid,
    )  # fmt: skip
    error.exit_code, error.signal_name = cause.exit_code, cause.signal_name
    error.failures, error.results, error.stacks = tuple(failures), dict(results), dict(stacks)
    error.__cause__ = cause.exception
    return error


def load_exception(pickled: bytes | None) -> BaseException | None:
    """The original exception, if its class can be imported here."""
    if pickled is None:
        return None
    try:
        loaded = load_image(Image(pickled, len(pickled)))
    except Exception:
        return None
    return loaded if isinstance(loaded, BaseException) else None


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


def _text(
    cause: Failure, others: Sequence[Failure], world_size: int, host: str, results: Iterable[int]
) -> str:
    place = f"rank {cause.rank} of {world_size} ({cause.device}, pid {cause.pid} on {host})"
    parts = [f"{place} {what(cause)}"]
    # The next sentences are torch.multiprocessing's, word for word: programs search for them.
    if cause.kind == "raised":
        parts.append(f"-- Process {cause.local_rank} terminated with the following error:")
        parts[-1] += f"\n{cause.traceback.rstrip()}"
    else:
        parts += _how_it_died(cause)
    if results and is_victim(f"{cause.error_type}: {cause.message}"):
        # Whoever failed lost a peer, and no peer died: gloo fails at once where others would wait.
        parts.append(f"{ranks(results)} had finished: if that is the peer it missed, {DIVERGED}")
    listed = _lines([other for other in others if other.label != "stopped by xmp"], cause)
    if listed:
        parts.append("Also failed:\n" + "\n".join(listed))
    return "\n\n".join(parts)


def what(failure: Failure) -> str:
    """How it failed, after the words "rank 3"."""
    if failure.kind == "raised":
        first = failure.message.strip().splitlines()[:1]
        return f"raised {failure.error_type}{': ' + first[0] if first else ''}"
    if failure.kind == "interrupted":
        return "was interrupted (KeyboardInterrupt)"
    if failure.signal_name:
        return f"was killed by {failure.signal_name}"
    return f"ended with exit code {failure.exit_code}"


def _how_it_died(failure: Failure) -> list[str]:
    parts = []
    if failure.signal_name:
        ending = f"signal {failure.signal_name}"
    else:
        ending = f"exit code {failure.exit_code}"
    parts.append(f"process {failure.local_rank} terminated with {ending}")
    if failure.exit_code in _HINTS:
        parts[-1] += f" ({_HINTS[failure.exit_code]})"
    if failure.traceback:
        parts.append(failure.traceback.rstrip())
    if failure.signal_name not in (None, "SIGKILL", "SIGTERM", "SIGINT") and failure.stacks:
        parts.append(f"Its Python stacks:\n{failure.stacks.rstrip()}")
    if failure.stderr:
        parts.append(f"Its last lines on standard error:\n{failure.stderr}")
    if failure.stdout:
        parts.append(f"Its last lines on standard output:\n{failure.stdout}")
    return parts


def _lines(failures: Sequence[Failure], cause: Failure) -> list[str]:
    """One line for all that failed alike: seven victims say the same seven times."""
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((_shape(what(failure)), failure.label), []).append(failure)
    return [_line(group, cause) for group in alike.values()]


def _shape(words: str) -> str:
    """Words without their numbers: ports and addresses differ between victims."""
    return re.sub(r"\d+", "#", words)


def _line(group: Sequence[Failure], cause: Failure) -> str:
    seconds = sorted((failure.at - cause.at) / 1e9 for failure in group)
    when = (
        f"{seconds[0]:+.3f} s" if len(group) == 1 else f"{seconds[0]:+.3f} … {seconds[-1]:+.3f} s"
    )
    label = "" if group[0].label == "unknown" else f", {group[0].label}"
    return f"  {ranks(failure.rank for failure in group)} {what(group[0])}  ({when}{label})"
