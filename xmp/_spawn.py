"""The verbs: ``spawn`` (plan, then the engine) and ``start_processes`` (the engine alone)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from . import _inside
from ._errors import PlanError, XmpError
from ._imports import without_collections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._processes.context import ProcessContext
    from ._processes.results import Results
    from ._types import HostFacts, JobPlan, Observer, Request

__all__ = ["device_count", "facts", "plan", "preload", "spawn", "start_processes"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def spawn(
    fn: Callable[Concatenate[int, P], R],
    args: Sequence[Any] = ...,
    nprocs: int | None = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: str | None = ...,
    **options: Any,
) -> Results[R]: ...


@overload
def spawn(
    fn: Callable[Concatenate[int, P], R],
    args: Sequence[Any] = ...,
    nprocs: int | None = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: str | None = ...,
    **options: Any,
) -> ProcessContext[R]: ...


def spawn(
    fn: Callable[Concatenate[int, P], R],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    runtime: str | None = None,
    devices: Sequence[int] | str | None = None,
    backend: str | None = None,
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    bind: bool | str | None = None,
    start_timeout: float | None = None,
    timeout: float | None = None,
    hang_timeout: float | None = None,
    grace: float = 5.0,
    max_restarts: int = 0,
    log_dir: str | os.PathLike[str] | None = None,
    prefix: bool | str | None = None,
    show: Sequence[int] | str | int | None = None,
    progress: bool | None = None,
    events: Any = None,
    **options: Any,
) -> Results[R] | ProcessContext[R]:
    """Run ``fn(rank, *args, **kwargs)`` on every device of this host, one replica per device.

    Args:
        fn: the function; its first argument is the global rank.
        args, kwargs: for ``fn``, sent once. CPU tensors in them are shared memory.
        nprocs: replicas on this host; None (or -1) for one per device. An explicit 1 with
            ``join=True`` runs ``fn`` in this process.
        join: wait and return the results; otherwise return a ``ProcessContext`` at once.
        daemon: with ``join=False``, end the replicas when this process ends instead of waiting.
        start_method: "forkserver" (default on Linux), "spawn" or "fork".
        runtime: "cpu", "jax", "cuda", …; None chooses and says why in the plan.
        devices: positions in what the host's mask allows: ``[4, 5]`` or ``"4,5"``.
        backend: a process group of this backend is ready when ``fn`` starts; "auto" for the
            runtime's own.
        env: extra variables, or a function from local rank to variables.
        seed: for ``random``, numpy and torch, the same in every replica.
        threads: native threads of each replica; None for usable cores / replicas.
        bind: True pins each replica to its own cores; "numa" keeps them on one node.
        timeout: seconds that the whole call may take.
        start_timeout: seconds from the call until every replica is in ``fn``.
        hang_timeout: seconds in which no replica makes progress: its main thread executes no
            Python, it calls no collective of xmp's and not ``xmp.beat()``.
        grace: seconds between SIGTERM and SIGKILL when the others have to end.
        max_restarts: how often all replicas are started anew after a failure, with new ports;
            ``xmp.restart_count()`` tells them. A replica that failed or hung and a supervisor that
            was killed are failures. Ctrl-C, a SIGTERM of this process, ``terminate()``, ``timeout``
            (which counts for all attempts together) and a result that cannot be sent end the
            launch. ``args`` and ``kwargs`` are sent anew: shared tensors have what an attempt has
            written into them, everything else is as in this process.
        progress: True shows in which phase each replica is until all run ``fn``: on a terminal as
            a few lines at its bottom, elsewhere as plain lines, one for each change. None does so
            on a terminal when the start takes longer than 2 s; False never.
        events: gets every change of the launch's state, in order: a function that takes one
            ``xmp.Event``, or the path of a file to which each is appended as a line of JSON. The
            function runs in this process, in the thread that waits for the launch, which waits
            for it in turn; with ``join=False`` what comes after the start is told when the launch
            is joined or asked for something. An exception of it is told once on standard error.
        log_dir: a folder for ``rank0.stdout.log``, ``rank0.stderr.log`` … with everything that was
            written; made if it is not there. An earlier launch's files of these names are emptied.
        prefix: True, or text such as ``"[{rank}] "`` (also ``{local_rank}``, ``{host}``) before
            every line; only whole lines are shown.
        show: whose output is shown: "all", "none", "0", "0,2-3", ``[0, 2]``, ``range(4)`` or 0.

    Returns:
        ``Results``: what each replica returned, in rank order (``join=True``).

    Raises:
        PlanError: the request does not fit this host. TypeError: a value of a wrong type, or an
        argument that cannot be sent. PortError, StartError: nothing was started.
        ReplicaRaised, ReplicaDied: a replica failed; the others have been ended.
        ReplicaTimeout: one of the time limits was over; has the stacks of all live replicas.
    """
    from . import _checks

    _checks.refuse_options(options)
    method = _checks.check_call(fn, args, kwargs, start_method, grace, seed)
    limits = _checks.make_limits(timeout, start_timeout, hang_timeout)
    restarts = _checks.count_from_zero("max_restarts", max_restarts)
    observer = _checks.make_observer(events, progress)
    output = _checks.make_output(log_dir, prefix, show)
    request = _checks.make_request(nprocs, runtime, devices, backend, env, threads, bind)
    _refuse_while_importing()
    alone = (start_method, env, devices, limits, restarts or None, output, show)
    if nprocs == 1 and join and all(value is None for value in alone):
        return _run_here(request, fn, args, kwargs or {}, seed, observer)
    with without_collections():
        from ._host import Call, launch

    call = Call(
        fn, args, kwargs, method, grace, daemon, seed, limits, observer, restarts, output=output
    )
    try:
        context: ProcessContext[R] = launch(request, call)
        return context.results() if join else context
    except XmpError as error:
        # The user's call is above, and our frames below it tell nothing.
        raise error.with_traceback(None) from error.__cause__


def start_processes(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str | None = None,
) -> ProcessContext[Any] | None:
    """Run ``fn(i, *args)`` in ``nprocs`` processes, without devices: the engine alone.

    The contract of ``torch.multiprocessing.start_processes`` (torch 2.13): returns None after a
    join, else a context whose ``join(timeout)`` returns True when all are done; always starts
    processes. Raises as ``spawn`` does.
    """
    from . import _checks

    method = _checks.check_call(fn, args, None, start_method, 5.0, None)
    count = _checks.whole_number("nprocs", nprocs)
    if count is None or count < 1:
        raise PlanError(f"nprocs={nprocs!r}: start_processes needs a whole number from 1 up")
    _refuse_while_importing()
    with without_collections():
        from ._host import Call, launch_bare

    context = launch_bare(count, Call(fn, args, None, method, 5.0, daemon))
    if not join:
        return context
    context.join()
    return None


def facts() -> HostFacts:
    """What this host says of itself, as ``python -m xmp facts`` prints it. Touches no device."""
    from ._host import facts as read

    return read()


def plan(
    nprocs: int | None = None,
    *,
    runtime: str | None = None,
    facts: HostFacts | Sequence[HostFacts] | None = None,
    devices: Sequence[int] | str | None = None,
    backend: str | None = None,
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    threads: int | None = None,
    bind: bool | str | None = None,
) -> JobPlan:
    """What ``spawn`` with these arguments would do, without doing it.

    ``facts`` are those of this host, or recorded ones: of one host or of several. Ports that are
    only known once they are leased have the runtime's documented numbers. Raises PlanError.
    """
    from . import _checks
    from ._host import plan_for

    request = _checks.make_request(nprocs, runtime, devices, backend, env, threads, bind)
    return plan_for(request, facts)


def device_count(runtime: str | None = None) -> int:
    """How many replicas ``spawn`` starts here by default. Touches no device."""
    return len(plan(runtime=runtime).hosts[0].replicas)


def preload(*packages: str | None) -> None:
    """Start the template now, in the background, while the script does its own imports.

    ``xmp.preload("torch", "jax")`` on a script's first line makes its first ``spawn`` as fast as
    the later ones; ``xmp.preload(None)`` ends the templates of this process and waits for them.
    Where a launch imports the script or its modules again, and in replicas, it starts nothing.
    """
    if packages == (None,):
        names = None
    else:
        names = [_package(name) for name in packages]
    if _importing() or (names is not None and _in_a_launch()):
        return
    with without_collections():
        from ._host import warm_up

    warm_up(names)


def _package(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"preload({name!r}): give names of packages, or None alone to end")
    return name


# --- scripts without a guard, and a replica in the caller -----------------------------------------


def _importing() -> bool:
    script = sys.modules.get("xmp._payload.script")
    return script is not None and script.importing_main()


def _in_a_launch() -> bool:
    """Whether this process is one of a launch, each of which would start a template."""
    payload = sys.modules.get("xmp._payload")
    loading = payload is not None and payload.loading()
    return loading or _inside.in_a_replica()


def _refuse_while_importing() -> None:
    """A script without the ``__main__`` guard has come to this call again, in our own import.

    What stands above the call is all that its function needs: the import ends here.
    """
    if _importing():
        from ._payload.script import MainReached

        raise MainReached


def _run_here(
    request: Request,
    fn: Callable[..., R],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seed: int | None,
    observer: Observer,
) -> Results[R]:
    """``nprocs=1``: the replica is this very process, for debuggers and profilers."""
    from ._here import run_here

    with _environment_kept():
        return run_here(request, fn, args, kwargs, seed, observer)


@contextmanager
def _environment_kept() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
