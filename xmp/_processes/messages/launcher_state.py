"""What a replica takes over from the launcher at each call, although the template is older.

The launcher captures; the supervisor applies, before it loads anything. What an import can see
(interpreter, user, namespaces, some variables) is not here: it is part of the template's key.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # 64 enums a launch cost 0.2 ms
import functools
import importlib
import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import process, resource_tracker
from typing import Any

from xmp._types import ForkRules

from . import pools

__all__ = [
    "LauncherState",
    "apply",
    "capture",
    "replace_environment",
    "restore_environment",
    "restore_mask",
    "restore_signals",
    "standard_streams",
    "take_streams",
    "while_loading",
]

_PYTHONS = frozenset({int(signal.SIGPIPE), int(signal.SIGXFSZ)})
_NUMBERS = tuple(sorted(int(number) for number in signal.valid_signals()))
_LIMITS = tuple(sorted(n for n in dir(resource) if n.startswith("RLIMIT_")))


@dataclass(frozen=True)
class LauncherState:
    """The launcher's surroundings at the call; the tracker's descriptor travels beside it."""

    pid: int
    name: str
    cwd: str | None
    path: list[str]
    argv: list[str]
    environment: dict[str, str]
    umask: int
    niceness: int
    affinity: frozenset[int]
    limits: dict[str, tuple[int, int]]
    blocked: frozenset[int]
    ignored: frozenset[int]
    unignored: frozenset[int]
    """Those of the signals that Python ignores which the launcher has at their default."""
    authkey: bytes
    tracker: bool
    write_bytecode: bool
    shadows: tuple[str, ...]
    """Modules beside the script that have a standard module's name."""


def capture() -> tuple[LauncherState, int | None]:
    """The state of this process, and the descriptor of its resource tracker if one runs."""
    tracker = _tracker()._fd
    own = process.current_process()
    state = LauncherState(
        pid=os.getpid(),
        name=own.name,
        cwd=_cwd(),
        path=list(sys.path),
        argv=list(sys.argv),
        environment=dict(os.environ),
        umask=_umask(),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        affinity=frozenset(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else frozenset(),
        limits={name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
        blocked=frozenset(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        ignored=_ignored(),
        unignored=frozenset(s for s in _PYTHONS if signal.getsignal(s) == signal.SIG_DFL),
        authkey=bytes(own.authkey),
        tracker=tracker is not None,
        write_bytecode=not sys.dont_write_bytecode,
        shadows=_shadows(sys.path[0] if sys.path else ""),
    )
    return state, tracker


def _tracker() -> Any:
    return resource_tracker._resource_tracker


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # the folder was removed under the launcher's feet


def _shadows(folder: str) -> tuple[str, ...]:
    """What an import in this process takes from the script's folder, not from the library.

    Not what was imported before the folder came into ``sys.path`` (os, types, ...).
    """
    try:
        names = {entry.partition(".")[0] for entry in os.listdir(folder or ".")}
    except OSError:
        return ()
    return tuple(
        name
        for name in sorted(names & sys.stdlib_module_names)
        if _file_of(name, "").startswith(os.path.abspath(folder or ".") + os.sep)
    )


def _file_of(name: str, default: str) -> str:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
    return os.path.abspath(getattr(spec, "origin", None) or default)


def _umask() -> int:
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    mask = os.umask(0o077)  # the only way without /proc: for an instant stricter, never laxer
    os.umask(mask)
    return mask


def _ignored() -> frozenset[int]:
    """Signals that the launcher ignores, but for those that Python itself ignores."""
    ignored = {n for n in _NUMBERS if _signal.getsignal(n) == _signal.SIG_IGN}
    return frozenset(ignored - _PYTHONS - {int(signal.SIGCHLD)})


def apply(state: LauncherState, tracker: int | None) -> None:
    """Become, as far as one process can, what the launcher is."""
    if state.cwd is not None:
        os.chdir(state.cwd)
    sys.path[:] = state.path
    sys.argv[:] = state.argv
    sys.dont_write_bytecode = not state.write_bytecode
    for name in state.shadows:
        if name not in sys.modules:
            continue  # looking at all names would write into 700 pages: a reference count each
        for known in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
            del sys.modules[known]
    replace_environment(state.environment)
    if "COVERAGE_PROCESS_START" in os.environ and "coverage" not in sys.modules:
        importlib.import_module("coverage").process_startup()
    os.umask(state.umask)
    _apply_scheduling(state)
    process.current_process().authkey = state.authkey
    own = _tracker()
    # Without the launcher's own tracker a second one would remove the launcher's segments.
    own._fd, own._pid = tracker, None


def _apply_scheduling(state: LauncherState) -> None:
    if state.affinity and frozenset(os.sched_getaffinity(0)) != state.affinity:
        os.sched_setaffinity(0, state.affinity)
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) != state.niceness:
            os.setpriority(os.PRIO_PROCESS, 0, state.niceness)
    except PermissionError:
        pass  # only root may go back to a lower niceness than the template has
    for name, limits in state.limits.items():
        which = getattr(resource, name)
        if which == resource.RLIMIT_NOFILE:
            continue  # the supervisor needs more, and gives the replicas the user's back
        if resource.getrlimit(which) != limits:
            try:
                resource.setrlimit(which, limits)
            except (OSError, ValueError):
                pass  # a hard limit that was raised since the template started


def replace_environment(wanted: Mapping[str, str]) -> None:
    """Make ``os.environ`` equal to ``wanted`` with as few system calls as the difference needs."""
    for name in [name for name in os.environ if name not in wanted]:
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


_variables: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]


def encoded(changes: Iterable[tuple[str, str | None]]) -> list[tuple[bytes, bytes | None]]:
    """Changes of the environment as they can be made in a fork: None takes a variable away."""
    return [(os.fsencode(k), None if v is None else os.fsencode(v)) for k, v in changes]


def change_environment(changes: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Make them, for Python and for native code; ``os.environ`` itself touches 20 pages more."""
    for name, value in changes:
        if value is None:
            _variables.pop(name, None)
            os.unsetenv(name)
        else:
            _variables[name] = value
            os.putenv(name, value)


def restore_mask(state: LauncherState) -> None:
    """In a replica: the launcher's mask, and its SIGPIPE where that is not Python's usual one."""
    for number in state.unignored:
        signal.signal(number, signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, state.blocked)


def while_loading(rules: ForkRules) -> dict[str, str]:
    """Variables for as long as something is loaded: one thread a pool, no device touched."""
    return {**pools.one_thread_environment(), **dict(rules.quiet)}


def restore_environment(changed: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Give the changed variables the values that they have in ``wanted``."""
    for name in changed:
        if name in wanted:
            os.environ[name] = wanted[name]
        else:
            os.environ.pop(name, None)


def restore_signals(state: LauncherState) -> None:
    """Give the replicas the launcher's ignored signals and the defaults for the rest.

    The mask is theirs alone to take: a supervisor that blocks SIGCHLD is never woken.
    """
    for number in _NUMBERS:
        handler = _signal.getsignal(number)
        if number in state.ignored:
            _signal.signal(number, _signal.SIG_IGN)
        elif callable(handler) and number != _signal.SIGINT:
            _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def standard_streams() -> list[int]:
    """Duplicates of nowhere (for standard input), standard output and standard error.

    A stream that the launcher has closed goes nowhere. Replicas read nothing, as in
    multiprocessing: they are not in the terminal's foreground group.
    """
    descriptors = [os.open(os.devnull, os.O_RDWR)]
    for number in (1, 2):
        try:
            descriptors.append(os.dup(number))
        except OSError:
            descriptors.append(os.open(os.devnull, os.O_RDWR))
    return descriptors


def take_streams(descriptors: list[int]) -> None:
    """Put the launcher's standard streams in place and make Python's objects anew.

    The template's own objects have the buffering and the encoding of its start.
    """
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # A launcher without standard streams has None for them.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    errors = getattr(sys.stdout, "errors", None) or "strict"
    streams: Any = sys
    reopen: Any = functools.partial(open, closefd=False)
    streams.stdin = streams.__stdin__ = reopen(0, encoding=encoding)
    streams.stdout = streams.__stdout__ = reopen(1, "w", encoding=encoding, errors=errors)
    streams.stderr = streams.__stderr__ = reopen(
        2, "w", buffering=1, encoding=encoding, errors="backslashreplace"
    )
