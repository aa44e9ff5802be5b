"""The identity of a replica in multiprocessing: its process object, its parent, its fork hooks."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from multiprocessing import process, util
from typing import Any

from xmp import _inside
from xmp._processes.messages.launcher_state import LauncherState
from xmp._processes.system.processes import TRACKER

__all__ = ["AfterFork", "ReplicaIdentity", "after_fork"]

_process: Any = process
_util: Any = util


class _Config(dict[str, Any]):
    """The configuration that multiprocessing copies for each child process and sends to it."""

    def copy(self) -> dict[str, Any]:
        return {**self, **_inside.for_children()}


class _ReplicaProcess(process.BaseProcess):
    """``multiprocessing.current_process()`` in a replica."""

    def __init__(self, state: LauncherState, rank: int) -> None:
        super().__init__(name=f"Replica-{rank}")
        self._identity = (rank + 1,)
        self._parent_pid = state.pid
        # Even if the launch has ``daemon``, a replica may have children (DataLoader).
        authkey = type(process.current_process().authkey)(state.authkey)
        self._config = _Config({"authkey": authkey, "daemon": False, "semprefix": "/mp"})
        self._popen = None
        self._closed = False


AfterFork = list[tuple[Callable[[Any], None], Any]]
"""The functions that each fork must run, each with its argument."""


class ReplicaIdentity:
    """The process object of a replica, made beforehand; ``take`` installs it in the replica.

    ``sentinel`` is a descriptor that becomes readable when the launch has lost its parent.
    Without ``after_fork``, everything that multiprocessing has registered is run.
    """

    def __init__(
        self, state: LauncherState, rank: int, sentinel: int, after_fork: AfterFork | None
    ) -> None:
        self._process = _ReplicaProcess(state, rank)
        self._parent = _process._ParentProcess(state.name, state.pid, sentinel)
        self._after_fork = after_fork

    def take(self) -> None:
        """Become a child of the launcher: proxies and locks must not share the parent's."""
        _util._finalizer_registry.clear()
        if self._after_fork is None:
            _spare_trackers()
            _util._run_after_forkers()
        else:
            for run, thing in self._after_fork:
                with contextlib.suppress(Exception):  # as multiprocessing does
                    run(thing)
        _process._process_counter = itertools.count(1)
        _process._children = set()
        _process._current_process = self._process
        _process._parent_process = self._parent


_ALIKE = {
    "ForkAwareThreadLock._at_fork_reinit",
    "SharedCache._after_fork",
    "_ResourceSharer._afterfork",
}
"""Hooks of multiprocessing (3.11) and torch (2.13) that make a new lock or empty a table."""


def after_fork() -> AfterFork:
    """Run here the fork hooks that are alike in all forks. Return those that each fork must run.

    This process is single-threaded: a lock that is new here is still free in its forks.
    """
    _spare_trackers()
    left = []
    for (_, _, run), thing in sorted(
        _util._afterfork_registry.items(), key=lambda item: item[0][0]
    ):
        if getattr(run, "__qualname__", "") in _ALIKE:
            run(thing)
        else:
            left.append((run, thing))
    return left


def _spare_trackers() -> None:
    """Have resource trackers of replicas lead a group of their own.

    A tracker removes what its process has left (semaphores, shared memory), once that has ended
    (CPython, multiprocessing/resource_tracker.py). The group of a replica that has ended is killed.
    """
    own = _util.spawnv_passfds

    def spawned(path: Any, args: list[Any], passfds: Any) -> int:
        if TRACKER not in str(args[-1]):
            pid: int = own(path, args, passfds)
            return pid
        quiet = "import warnings; warnings.simplefilter('ignore'); "  # it tells of what was left
        for each in passfds:
            os.set_inheritable(each, True)
        try:
            return os.posix_spawn(path, [*args[:-1], quiet + args[-1]], os.environ, setpgroup=0)
        finally:
            for each in passfds:
                os.set_inheritable(each, False)

    _util.spawnv_passfds = spawned
