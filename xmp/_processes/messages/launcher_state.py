"""The launcher's state at each call, which its replicas get although the template is older.

The launcher captures it; the supervisor applies it before it loads anything. State that an import
can see (interpreter, user, namespaces, some variables) is not here but in the template's key.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # 64 enums a launch cost 0.2 ms
import contextlib
import importlib
import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing import process, resource_tracker
from typing import Any

from xmp._os import proc
from xmp._os.signals import DUMP_SIGNAL
from xmp._processes.system.environment_changes import replace_environment
from xmp._processes.system.interpreter import TRACING, traced_frames

__all__ = [
    "LauncherState", "apply", "apply_surroundings", "capture", "restore_mask", "restore_signals",
    "with_path_of", "with_variables",
]  # fmt: skip

_IGNORED_BY_PYTHON = frozenset({int(signal.SIGPIPE), int(signal.SIGXFSZ)})
_KEPT = _IGNORED_BY_PYTHON | {DUMP_SIGNAL}
"""Signals that stay ignored in replicas even if the launcher does not ignore them: Python's own,
and the last one until it makes a replica write its stacks."""
_NUMBERS = tuple(sorted(int(number) for number in signal.valid_signals()))
_LIMITS = tuple(sorted(n for n in dir(resource) if n.startswith("RLIMIT_")))
_tracker: Any = resource_tracker._resource_tracker


@dataclass(frozen=True)
class LauncherState:
    """The launcher's state at the call; its resource tracker's descriptor is sent with it."""

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
    """The signals that the launcher ignores, without those that Python itself ignores."""
    unignored: frozenset[int]
    """The signals that Python ignores by itself and the launcher has reset to their default."""
    authkey: bytes
    tracker: bool
    write_bytecode: bool
    shadows: tuple[str, ...]
    """Modules in the script's folder that have the name of a standard module."""
    traced: int
    """Frames of each allocation that tracemalloc records; 0: tracemalloc is off."""


def capture() -> tuple[LauncherState, int | None]:
    """Return the state of this process, and its resource tracker's descriptor if one runs."""
    tracker = _tracker._fd
    own = process.current_process()
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = None  # the folder has been removed
    ignored = {n for n in _NUMBERS if _signal.getsignal(n) == _signal.SIG_IGN}
    state = LauncherState(
        pid=os.getpid(),
        name=own.name,
        cwd=cwd,
        path=list(sys.path),
        argv=list(sys.argv),
        environment=dict(os.environ),
        umask=_umask(),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        affinity=frozenset(proc.affinity()),
        limits={name: proc.limit(getattr(resource, name)) for name in _LIMITS},
        blocked=frozenset(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        ignored=frozenset(ignored - _IGNORED_BY_PYTHON - {int(signal.SIGCHLD)}),
        unignored=frozenset(s for s in _IGNORED_BY_PYTHON if signal.getsignal(s) == signal.SIG_DFL),
        authkey=bytes(own.authkey),
        tracker=tracker is not None,
        write_bytecode=not sys.dont_write_bytecode,
        shadows=_shadows(sys.path[0] if sys.path else ""),
        traced=traced_frames(),
    )
    return state, tracker


def with_variables(state: LauncherState, variables: Mapping[str, str]) -> LauncherState:
    """Return the state as if the launcher had these variables (of ``env=``) too."""
    before, environment = state.environment, {**state.environment, **variables}
    if environment == before:
        return state
    paths = before.get("PYTHONPATH", ""), environment.get("PYTHONPATH", "")
    quiet = environment.get("PYTHONDONTWRITEBYTECODE", "")
    changed = quiet != before.get("PYTHONDONTWRITEBYTECODE", "")
    write = not quiet if changed else state.write_bytecode
    path = with_path_of(state.path, *paths)
    tracing = environment.get(TRACING, "")
    traces = tracing != before.get(TRACING, "") and tracing.isdecimal()
    traced = int(tracing) if traces else state.traced
    return replace(state, environment=environment, path=path, write_bytecode=write, traced=traced)


def with_path_of(path: list[str], before: str, after: str) -> list[str]:
    """Return ``path`` with the folders of PYTHONPATH ``after`` in place of those of ``before``."""
    if after == before:
        return path
    kept = [entry for entry in path if entry not in before.split(os.pathsep)]
    new = [os.path.abspath(entry) for entry in after.split(os.pathsep) if entry]
    return [*kept[:1], *new, *kept[1:]]  # behind the script's folder, where Python puts them


def _shadows(folder: str) -> tuple[str, ...]:
    """Return the standard modules that an import in this process takes from the script's folder.

    Modules that were imported before the folder came into ``sys.path`` (os, types, ...) are not
    among them.
    """
    folder = os.path.abspath(folder)
    try:
        names = {entry.partition(".")[0] for entry in os.listdir(folder)}
    except OSError:
        return ()
    found = sorted(names & sys.stdlib_module_names)
    return tuple(name for name in found if _file_of(name).startswith(folder + os.sep))


def _file_of(name: str) -> str:
    if name in sys.modules:
        spec = getattr(sys.modules[name], "__spec__", None)
    else:
        spec = importlib.util.find_spec(name)
    # The origin of a module without a file is a word: "built-in", "frozen".
    return os.path.abspath(spec.origin) if spec and spec.has_location and spec.origin else ""


def _umask() -> int:
    known = proc.status().get("Umask")
    if known is not None:
        return int(known, 8)
    mask = os.umask(0o077)  # umask(2) cannot read without setting: stricter for an instant
    os.umask(mask)
    return mask


def apply(state: LauncherState, tracker: int | None) -> None:
    """Give this process the launcher's state, as far as the kernel allows."""
    os.chdir("/" if state.cwd is None else state.cwd)
    sys.path[:] = state.path
    sys.argv[:] = state.argv
    sys.dont_write_bytecode = not state.write_bytecode
    for name in state.shadows:
        if name not in sys.modules:
            continue  # looking at all names would write reference counts into 700 pages
        for known in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
            del sys.modules[known]
    replace_environment(state.environment)
    if "COVERAGE_PROCESS_START" in os.environ and "coverage" not in sys.modules:
        importlib.import_module("coverage").process_startup()
    os.umask(state.umask)
    _apply_scheduling(state)
    process.current_process().authkey = state.authkey
    # Without the launcher's own tracker a second one would remove the launcher's segments.
    _tracker._fd, _tracker._pid = tracker, None


def apply_surroundings(state: LauncherState) -> None:
    """Give an agent the state that it would inherit if the launcher started it now."""
    if state.cwd is not None:
        with contextlib.suppress(OSError):  # the supervisor says so
            os.chdir(state.cwd)
    os.umask(state.umask)
    _apply_scheduling(state)


def begin_tracing(state: LauncherState) -> None:
    """Record allocations of this replica from now on, as the launcher's tracemalloc does."""
    import _tracemalloc

    _tracemalloc.start(state.traced)


def _apply_scheduling(state: LauncherState) -> None:
    if state.affinity and frozenset(proc.affinity()) != state.affinity:
        os.sched_setaffinity(0, state.affinity)
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) != state.niceness:
            os.setpriority(os.PRIO_PROCESS, 0, state.niceness)
    except PermissionError:
        pass  # only root may have a lower niceness than the template (setpriority(2))
    for name, limits in state.limits.items():
        which = getattr(resource, name)
        if which == resource.RLIMIT_NOFILE:
            continue  # the supervisor needs more, and gives the replicas the user's back
        if proc.limit(which) != limits:
            try:
                resource.setrlimit(which, limits)
            except (OSError, ValueError):
                pass  # a hard limit that was raised after the template started


def restore_mask(state: LauncherState) -> None:
    """Take the launcher's signal mask in a replica, and the defaults that it has set (SIGPIPE)."""
    for number in state.unignored:
        signal.signal(number, signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, state.blocked)


def restore_signals(state: LauncherState) -> None:
    """Give the replicas the launcher's ignored signals and the defaults for the rest.

    The mask is left to each replica, which takes it itself: a supervisor must not block SIGCHLD.
    """
    for number in _NUMBERS:
        handler = _signal.getsignal(number)
        if number in state.ignored:
            _signal.signal(number, _signal.SIG_IGN)
        elif number == _signal.SIGINT:
            _signal.signal(number, _signal.default_int_handler)
        elif callable(handler) or (handler == _signal.SIG_IGN and number not in _KEPT):
            _signal.signal(number, _signal.SIG_DFL)
