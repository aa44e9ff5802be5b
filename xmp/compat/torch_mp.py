"""``torch.multiprocessing`` on top of xmp: ``import xmp.compat.torch_mp as mp``, and go on.

Names, signatures and defaults are those of torch 2.13 (torch/multiprocessing/spawn.py). Every other
name of that package (``get_context``, ``Queue``, ``set_sharing_strategy`` …) is torch's own.

What differs. The text of an error says more, before what torch's says. Programs without an
``if __name__ == "__main__":`` guard, notebook cells, lambdas and closures work. A call that ``fn``
cannot take is refused before a process starts. A replica that Ctrl-C interrupts has failed; torch
counts it as success. A failure ends the other replicas at once, and not only when the program
joins. A daemonic replica may have children.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from xmp import _processes
from xmp._calls.spawn import Args, public
from xmp._calls.verbs import start_bare
from xmp._words.errors import ReplicaDied, ReplicaError, ReplicaRaised

if TYPE_CHECKING:
    from xmp._words.types import StartMethod

__all__ = [
    "ProcessContext",
    "ProcessException",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SpawnContext",
    "spawn",
    "start_processes",
]

ProcessException = ReplicaError
"""A replica has failed: ``error_index``, ``error_pid``, ``msg``.

This and the two below are xmp's own classes under torch's names. When torch is loaded, the
exception that a launch raises is an instance of torch's class, too.
"""
ProcessRaisedException = ReplicaRaised
"""The function raised; the text ends with the traceback, and ``__cause__`` is the exception."""
ProcessExitedException = ReplicaDied
"""The process ended by a signal or with an exit code: ``exit_code``, ``signal_name``."""


class ProcessContext(_processes.ProcessContext[None]):
    """The handle of running replicas, from ``join=False``.

    ``join`` also returns False when a further replica has ended, as torch's does: call it until it
    returns True or raises. Results are not sent: ``results()`` has None for each replica.
    """

    def _enough(self) -> bool:
        # An end with exit code 0 is enough while others run. After the last end, or one with
        # another exit code, the launch ends, and so does the wait.
        codes = {each: each.reported for each in self.processes if each not in self._noted}
        return 0 in codes.values() and None in codes.values()


class _NoProcesses(ProcessContext):
    """The handle for ``nprocs=0``: nothing was started, and all is done."""

    def __init__(self) -> None:
        self._noted = set()

    def __repr__(self) -> str:
        return "<ProcessContext of no processes>"

    @property
    def processes(self) -> list[Any]:
        return []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True

    def results(self) -> _processes.Results[None]:
        return _processes.Results({}, _processes.StartTimeline({}))

    def stacks(self) -> dict[int, str]:
        return {}

    def terminate(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


SpawnContext = ProcessContext
"""The name of ``ProcessContext`` before torch 1.4."""


@overload
def start_processes(
    fn: Callable[..., object],
    args: Args = ...,
    nprocs: int = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: StartMethod = ...,
) -> None: ...


@overload
def start_processes(
    fn: Callable[..., object],
    args: Args = ...,
    nprocs: int = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: StartMethod = ...,
) -> ProcessContext: ...


@overload
def start_processes(
    fn: Callable[..., object],
    args: Args = ...,
    nprocs: int = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: StartMethod = ...,
) -> ProcessContext | None: ...


@public
def start_processes(
    fn: Callable[..., object],
    args: Args = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod = "spawn",
) -> ProcessContext | None:
    """Run ``fn(i, *args)`` in ``nprocs`` processes.

    Args:
        fn: the function; its first argument is the index of its process, from 0.
        args: a tuple or list of further arguments.
        nprocs: the number of processes; with 0 nothing is started.
        join: wait for the end of all processes; otherwise return a handle at once.
        daemon: with ``join=False``, end the processes when this one ends instead of waiting.
        start_method: taken as given: "spawn" makes fresh interpreters, which takes seconds where
            "forkserver" takes milliseconds (see ``spawn``).

    Returns:
        None after a join, else a ``ProcessContext``.

    Raises:
        ProcessRaisedException, ProcessExitedException: a replica failed; the others have ended.
        PlanError: a number or a start method does not fit.
        TypeError: a value of a wrong type.
        StartError: a process does not start. With these three no process of the launch exists.
    """
    return _started(fn, args, nprocs, join, daemon, start_method)


@overload
def spawn(
    fn: Callable[..., object],
    args: Args = ...,
    nprocs: int = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: StartMethod = ...,
) -> None: ...


@overload
def spawn(
    fn: Callable[..., object],
    args: Args = ...,
    nprocs: int = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: StartMethod = ...,
) -> ProcessContext: ...


@overload
def spawn(
    fn: Callable[..., object],
    args: Args = ...,
    nprocs: int = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: StartMethod = ...,
) -> ProcessContext | None: ...


@public
def spawn(
    fn: Callable[..., object],
    args: Args = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod = "spawn",
) -> ProcessContext | None:
    """Run ``fn(i, *args)`` in ``nprocs`` processes.

    As with torch, the processes inherit nothing from this one: no globals, no devices, no threads.
    But they are forked from xmp's template, which has imported the script and its modules once.
    ``start_method`` is deprecated in torch and changes nothing there, so its default keeps xmp's
    fast method. Where a fork would not be safe, the processes are fresh interpreters. For modules
    that each process must import itself, use ``start_processes``, which always makes those.

    Args:
        fn: the function; its first argument is the index of its process, from 0.
        args: a tuple or list of further arguments.
        nprocs: the number of processes; with 0 nothing is started.
        join: wait for the end of all processes; otherwise return a handle at once.
        daemon: with ``join=False``, end the processes when this one ends instead of waiting.
        start_method: changes nothing; a FutureWarning says so for another one than "spawn", as in
            torch.

    Returns:
        None after a join, else a ``ProcessContext``.

    Raises:
        ProcessRaisedException, ProcessExitedException, PlanError, TypeError, StartError: as
            ``start_processes`` does.
    """
    if start_method != "spawn":
        warnings.warn(
            f"start_method={start_method!r} changes nothing in spawn(); call "
            f"start_processes(..., start_method={start_method!r})",
            FutureWarning,
            stacklevel=3,
        )
    return _started(fn, args, nprocs, join, daemon, None)


def _started(
    fn: Callable[..., object],
    args: Args,
    nprocs: int,
    join: bool,
    daemon: bool,
    start_method: StartMethod | None,
) -> ProcessContext | None:
    if nprocs == 0 and not isinstance(nprocs, bool):
        return None if join else _NoProcesses()
    context = start_bare(fn, args, nprocs, join, daemon, start_method, wants_results=False)
    return None if context is None else ProcessContext(context._launch)


def __getattr__(name: str) -> Any:
    """Return a name of torch.multiprocessing, which has those of Python's multiprocessing, too."""
    if name.startswith("__"):  # which the import system and inspect ask for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch.multiprocessing

    return getattr(torch.multiprocessing, name)


def __dir__() -> list[str]:
    """List the names of torch.multiprocessing and the names above."""
    import torch.multiprocessing

    dunder = {name for name in globals() if name.startswith("__")}
    public = {name for name in dir(torch.multiprocessing) if not name.startswith("_")}
    return sorted({*__all__, *dunder, *public})
