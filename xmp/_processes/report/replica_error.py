"""The error that the launcher raises for failed replicas: its text, its attributes, its class.

The text begins with one line: what happened to which rank, pid and host. Then come the evidence
(stacks, last lines), advice, and lines for the replicas that failed later. It ends like the text of
``torch.multiprocessing``, with the traceback or the end of the process.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from xmp._processes.messages.order import MALFORMED, Failure
from xmp._processes.messages.outcomes import load_exception
from xmp._processes.system.processes import CPU_TIME
from xmp._rules.watch import STOPPED, UNKNOWN, is_victim
from xmp._words.errors import ReplicaDied, ReplicaError, ReplicaRaised, ReplicaTimeout, StartError

from . import ipython as ipython  # an error of ours knows how notebooks show it
from .failure_codes import CALLED_ON_IT, code_of
from .only_here import imported_again, only_here
from .out_of_memory import OomFinding
from .short_text import short
from .stack_texts import crash_stacks, ranks
from .timeout_error import DIVERGED
from .tracebacks import with_source
from .variables import loaded

__all__ = ["CALLED_ON_IT", "also_torchs", "build", "exception_of", "not_imported", "not_loaded"]

_WROTE_NOTHING = (
    "It wrote nothing on standard error. Look for sys.exit and os._exit in the code that it runs."
)
_MALFORMED = (
    "Only xmp uses the connection between a replica and its supervisor.\n"
    "Look for code that writes to descriptors which it has not opened, or that corrupts memory."
)
_NOT_ENTERED = (
    "It had not reached the function: it was importing modules, loading the function and its\n"
    "arguments, or joining the other replicas."
)
_HUNG_UP = (
    "Without it a replica cannot send its result or its exception. Look for code that closes all\n"
    "open files: os.closerange, os.close in a loop, a library that makes the process a daemon."
)
_CPU_TIME = (
    "RLIMIT_CPU allows a process so many seconds of CPU time (ulimit -t, resource.setrlimit).\n"
    "Raise it before the launch; replicas inherit it from this process."
)
_WHOLE = "error.failures[0].traceback"
_LINES_AFTER_TRACEBACK = 10
_LONGEST_SIMILAR = 200
_LONGEST_OTHER = 500  # characters of a message that is not the cause's; `failures` has all


def not_loaded(text: str, words: str, pickled: bytes | None, where: str = "") -> StartError:
    """Return the exception for a function or arguments that cannot be loaded ``where``."""
    failed = f"{where}loading the function and its arguments failed: {words}"
    parts = [failed, imported_again(text), short(text.rstrip())]
    error = StartError("\n\n".join(filter(None, parts)), code="XMP-S03")
    error.__cause__ = load_exception(pickled)
    return error


def not_imported(path: str, words: str, text: str) -> StartError:
    """Return the exception for a script that raises when it is imported for the replicas."""
    parts = [f"importing {path} failed: {words}", imported_again(text), short(text.rstrip())]
    return StartError("\n\n".join(filter(None, parts)), code="XMP-S02")


def exception_of(failure: Failure) -> BaseException | None:
    """Return the failure's exception, loaded once, if its class is known here; else None.

    Loading an exception whose class only the replica had makes that class here; if it were loaded a
    second time, the class would be taken for known.
    """
    if failure.exception is None:
        failure.exception = load_exception(failure.pickled)
        if failure.exception is None:
            failure.pickled = None
    return failure.exception


def build(
    failures: Sequence[Failure],
    world_size: int,
    host: str,
    results: Mapping[int, Any],
    stacks: Mapping[int, str],
    memory: OomFinding,
    ended_by: str = "",
    place: int | None = None,
) -> ReplicaError:
    """Build the exception for a launch with these failures; the first one is the cause.

    ``ended_by`` says what in this process made xmp end the launch, if anything did. ``place`` is
    the cause's place in the handle's ``processes``, if that is not its local rank.
    """
    for failure in failures:
        exception_of(failure)
        stopped = ended_by if failure.label == STOPPED else ""
        failure.why = failure.why or stopped or memory.why(failure)
    cause, *others = failures
    where = ", ".join(filter(None, [cause.device, f"pid {cause.pid} on {host}"]))
    parts = [
        f"rank {cause.rank} of {world_size} ({where}) {cause.what}",
        *_evidence(cause),
        _recorded(cause),
        memory.found(_killed_from_elsewhere(cause), cause.signal_name is not None),
        *_last_lines(cause),
        only_here(cause.error_type, cause.message),
        "" if cause.entered else imported_again(cause.traceback),
        _divergence(cause, results),
        _unsent(cause),
        _also_failed(cause, others),
    ]
    ending = "".join(f"\n\n{part}" for part in _ending(cause, place) if part)
    kind = also_torchs(ReplicaRaised if cause.kind == "raised" else ReplicaDied)
    error: ReplicaError = kind("\n\n".join(filter(None, parts)) + ending, code=code_of(cause))
    error._ending = ending
    error.host, error.pid, error._place = host, cause.pid, place
    error.rank, error.local_rank = cause.rank, cause.local_rank
    error.exit_code, error.signal_name = cause.exit_code, cause.signal_name
    error.failures, error.results, error.stacks = tuple(failures), dict(results), dict(stacks)
    error.__cause__ = cause.exception
    error.locals = loaded(cause.variables)
    return error


# --- the text ----------------------------------------------------------------------------------


def _evidence(failure: Failure) -> Iterator[str]:
    """Yield what is known of a process that ended without an exception."""
    if failure.kind == "raised":
        return
    if not failure.signal_name:
        yield _hint(failure.exit_code)
    if not failure.entered and failure.label != STOPPED:
        yield _NOT_ENTERED
    if failure.kind == MALFORMED:
        yield _MALFORMED
    if failure.hung_up:
        yield _HUNG_UP
    if failure.why.startswith(CPU_TIME):
        yield _CPU_TIME
    if failure.signal_name not in (None, "SIGKILL", "SIGTERM", "SIGINT") and failure.stacks:
        yield f"Its Python stacks:\n{crash_stacks(failure.stacks)}"


def _ending(failure: Failure, place: int | None) -> Iterator[str]:
    """Yield the failure's traceback, and torch.multiprocessing's sentence.

    Programs search for that sentence at the end of the text: it is torch's, word for word (torch
    2.13, torch/multiprocessing/spawn.py, ProcessContext.join).
    """
    traceback = short(with_source(failure.traceback.rstrip()), _WHOLE)
    place = failure.local_rank if place is None else place
    ended = failure.signal_name or failure.exit_code is not None
    if failure.kind == "raised" or not ended:  # or it was interrupted, and is ending still
        yield f"-- Process {place} terminated with the following error:\n{traceback}"
        return
    yield traceback
    code = f"exit code {failure.exit_code}"
    ending = f"signal {failure.signal_name}" if failure.signal_name else code
    yield f"process {place} terminated with {ending}"


def _killed_from_elsewhere(failure: Failure) -> bool:
    """Return whether the process may have been killed from elsewhere: memory counters may tell."""
    known = failure.kind == MALFORMED or failure.label == STOPPED
    known = known or failure.why.startswith(CPU_TIME) or failure.why.endswith(CALLED_ON_IT)
    return bool(failure.why) and not known


def _hint(code: int | None) -> str:
    """Return where this exit code comes from, if that is known; else ""."""
    if code == 17:
        return "17 is legacy torch_xla's exit code for a replica whose function raised."
    try:
        name = signal.Signals((code or 0) - 128).name
    except ValueError:
        return ""
    return f"{code} is a shell's exit code for a program that {name} ended."


def _recorded(failure: Failure) -> str:
    """Return the traceback that torch's ``@record`` has written, unless it is shown otherwise."""
    trace = failure.recorded[1].rstrip()
    last = trace.rpartition("\n")[2]
    if not failure.recorded_apart or not trace or last in failure.stderr.splitlines():
        return ""
    return f"What @record wrote of it:\n{short(with_source(trace))}"


def _last_lines(failure: Failure) -> Iterator[str]:
    """Yield the last lines of the replica's output; fewer if there is a traceback."""
    most = _LINES_AFTER_TRACEBACK if failure.kind == "raised" else sys.maxsize
    for stream, text in (("error", failure.stderr), ("output", failure.stdout)):
        if text:
            lines = "\n".join(text.splitlines()[-most:])
            yield f"Its last lines on standard {stream}:\n{lines}"
    known = failure.message or failure.hung_up or failure.recorded_apart
    if failure.kind == "exit" and not known and not failure.stderr and not failure.stdout:
        yield _WROTE_NOTHING


def _divergence(cause: Failure, results: Collection[int]) -> str:
    """Return advice if the cause lost a peer that had finished; else "".

    No peer died then: gloo fails at once where other backends wait.
    """
    if not results or not is_victim(f"{cause.error_type}: {cause.message}"):
        return ""
    peer = "it" if len(results) == 1 else "one of them"
    return f"{ranks(results)} had finished. If rank {cause.rank} waited for {peer}, {DIVERGED}."


def _unsent(cause: Failure) -> str:
    """Return why ``__cause__`` is None although the replica has raised; else ""."""
    if not cause.unsent:
        return ""
    return f"__cause__ is None: {cause.error_type} could not be sent ({cause.unsent})."


def _also_failed(cause: Failure, others: Sequence[Failure]) -> str:
    """Return one line for each group that failed alike, as seven victims of one cause do."""
    alike: dict[tuple[str, str], list[Failure]] = {}
    for other in others:
        if other.label != STOPPED:
            alike.setdefault((_shape(other.what), other.label), []).append(other)
    lines = [_line(group, cause) for group in alike.values()]
    return "\n".join(["Also failed:", *lines]) if lines else ""


def _shape(what: str) -> str:
    """Return the text without its numbers: ports and addresses differ between victims."""
    return re.sub(r"\d+", "#", what)


def _line(group: Sequence[Failure], cause: Failure) -> str:
    seconds = sorted((failure.at - cause.at) / 1e9 for failure in group)
    until = f" … {seconds[-1]:+.3f}" if len(group) > 1 else ""
    label = "" if group[0].label == UNKNOWN else f"{group[0].label}, "
    what = group[0].what
    if what == cause.what:
        what = "the same"
    elif len(what) > _LONGEST_SIMILAR and _shape(what) == _shape(cause.what):
        what = "the same with other numbers"
    elif len(what) > _LONGEST_OTHER:
        what = f"{what[:_LONGEST_OTHER]}…"
    numbers = ranks(failure.rank for failure in group)
    return f"  {numbers} ({label}{seconds[0]:+.3f}{until} s): {what}"


# --- the class ---------------------------------------------------------------------------------

_mixed: dict[tuple[type, type], type[ReplicaError]] = {}


def also_torchs(kind: type[ReplicaError]) -> type[ReplicaError]:
    """Return a class that is ours and torch's if torch is loaded; else ``kind``.

    With it, ``except ProcessRaisedException`` catches our error as well. It pickles as ours.
    """
    spawn = sys.modules.get("torch.multiprocessing.spawn")
    if spawn is None or kind not in (ReplicaRaised, ReplicaDied):
        return kind
    name = "ProcessRaisedException" if kind is ReplicaRaised else "ProcessExitedException"
    torchs = getattr(spawn, name)
    if (kind, torchs) not in _mixed:
        namespace = {"__module__": "xmp", "__doc__": kind.__doc__, "__reduce__": _reduced}
        _mixed[kind, torchs] = type(kind.__name__, (kind, torchs), namespace)
    return _mixed[kind, torchs]


def _reduced(self: ReplicaError) -> tuple[Any, ...]:
    """Reduce an error for pickle and copy, which know neither the mixed class nor ``__cause__``."""
    mixed = {both: ours for (ours, _), both in _mixed.items()}
    ours = mixed.get(type(self), type(self))
    # Without the exceptions, whose classes may have no name: `pickled` has them.
    known: Sequence[Any] = self.failures
    failures = tuple(
        replace(each, exception=None, pickled=each.pickled if each.exception is not None else None)
        for each in known
    )
    return _restored, (ours, self.args, {**self.__dict__, "failures": failures})


def _restored(kind: type[ReplicaError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error: Any = also_torchs(kind)(*args)
    error.__dict__.update(state)
    for failure in error.failures:
        failure.exception = load_exception(failure.pickled)
    if kind is not ReplicaTimeout and error.failures:
        error.__cause__ = error.failures[0].exception
    return error


def _new(kind: type[ReplicaError], *args: Any, **kwargs: Any) -> ReplicaError:
    """Make an error that ``except`` also knows by torch's name, even if a program makes it."""
    # A built-in class makes objects of its own layout alone, and TimeoutError's differs.
    builtin = TimeoutError if issubclass(kind, TimeoutError) else RuntimeError
    return builtin.__new__(also_torchs(kind), *args)


ReplicaError.__reduce__ = _reduced  # type: ignore[assignment]
ReplicaError.__new__ = staticmethod(_new)  # type: ignore[assignment]
