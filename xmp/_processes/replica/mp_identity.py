"""Who a forked process is for multiprocessing, and with which interpreter others are started."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from multiprocessing import process, spawn, util
from pathlib import Path
from typing import Any

from .state import LauncherState

__all__ = [
    "Identity",
    "after_fork",
    "executable",
    "finish_multiprocessing",
    "interpreter_flags",
    "package_root",
]

package_root = str(Path(__file__).resolve().parents[2])


class _ReplicaProcess(process.BaseProcess):
    """``multiprocessing.current_process()`` in a replica."""

    def __init__(self, state: LauncherState, rank: int) -> None:
        super().__init__(name=f"Replica-{rank}")
        self._identity = (rank + 1,)
        self._parent_pid = state.pid
        # Whatever ``daemon`` says of the launch, a replica may have children (DataLoader).
        authkey = type(process.current_process().authkey)(state.authkey)
        self._config = {"authkey": authkey, "daemon": False, "semprefix": "/mp"}
        self._popen = None
        self._closed = False


class Identity:
    """Who a replica will be, made beforehand; ``take`` makes the calling process it.

    ``sentinel`` is a descriptor that becomes readable when the launch has lost its parent.
    """

    def __init__(self, state: LauncherState, rank: int, sentinel: int) -> None:
        module: Any = process
        self._process = _ReplicaProcess(state, rank)
        self._parent = module._ParentProcess(state.name, state.pid, sentinel)

        self.after_fork: list[tuple[Callable[[Any], None], Any]] | None = None
        """What is left for a fork to do; None: whatever multiprocessing has registered."""

    def take(self) -> None:
        """A proper child of the launcher: proxies and locks must not share the parent's."""
        util._finalizer_registry.clear()  # type: ignore[attr-defined]
        if self.after_fork is None:
            util._run_after_forkers()  # type: ignore[attr-defined]
        else:
            for run, thing in self.after_fork:
                run(thing)
        module: Any = process
        module._process_counter = itertools.count(1)
        module._children = set()
        module._current_process = self._process
        module._parent_process = self._parent


_ALIKE = {
    "ForkAwareThreadLock._at_fork_reinit",
    "SharedCache._after_fork",
    "_ResourceSharer._afterfork",
}
"""Of multiprocessing (3.11) and torch (2.13): a lock made anew, a table emptied."""


def after_fork() -> list[tuple[Callable[[Any], None], Any]]:
    """What each fork has to run, after this process has run what would be the same in all.

    This process is single-threaded: a lock that is new here is so in its forks.
    """
    left = []
    registered = util._afterfork_registry.items()  # type: ignore[attr-defined]
    for (_, _, run), thing in sorted(registered, key=lambda item: item[0][0]):
        if getattr(run, "__qualname__", "") in _ALIKE:
            run(thing)
        else:
            left.append((_guarded(run), thing))
    return left


def _guarded(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """As multiprocessing does: what fails is left behind."""

    def attempt(thing: Any) -> None:
        with contextlib.suppress(Exception):
            run(thing)

    return attempt


def finish_multiprocessing() -> None:
    """Join the replica's own children and run the finalizers it registered."""
    util._exit_function()  # type: ignore[attr-defined]


def executable() -> str:
    """The interpreter for processes of ours, as multiprocessing has it."""
    path = spawn.get_executable()
    return path if isinstance(path, str) else os.fsdecode(path)


def interpreter_flags() -> list[str]:
    """The command-line flags that reproduce this interpreter's."""
    return list(util._args_from_interpreter_flags())  # type: ignore[attr-defined]
