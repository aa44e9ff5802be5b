"""The verbs: ``spawn`` (plan, then the engine) and ``start_processes`` (the engine alone)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from ._errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._processes.context import ProcessContext
    from ._processes.results import Results
    from ._types import Request

__all__ = ["preload", "spawn", "start_processes"]

P = ParamSpec("P")
R = TypeVar("R")

METHODS = ("forkserver", "spawn", "fork")
_LATER = {
    "hang_timeout": None, "start_timeout": None, "timeout": None, "max_restarts": 0,
    "log_dir": None, "prefix": None, "show": None, "progress": None, "events": None,
}  # fmt: skip
_PADDLE = ("gpus", "xpus", "ips", "print_config")


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
    log_dir: str | None = None,
    prefix: bool | str | None = None,
    show: Any = None,
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
        grace: seconds between SIGTERM and SIGKILL when the others have to end.

    Returns:
        ``Results``: what each replica returned, in rank order (``join=True``).

    Raises:
        PlanError: the request does not fit this host. TypeError: a value of a wrong type, or an
        argument that cannot be sent. PortError, StartError: nothing was started.
        ReplicaRaised, ReplicaDied: a replica failed; the others have been ended.
    """
    later = {
        "hang_timeout": hang_timeout, "start_timeout": start_timeout, "timeout": timeout,
        "max_restarts": max_restarts, "log_dir": log_dir, "prefix": prefix, "show": show,
        "progress": progress, "events": events,
    }  # fmt: skip
    _refuse(later, options)
    method = _check_call(fn, args, kwargs, start_method, grace, seed)
    request = _request(nprocs, runtime, devices, backend, env, threads, bind)
    _refuse_while_importing()
    if nprocs == 1 and join and start_method is None and env is None and devices is None:
        return _run_here(request, fn, args, kwargs or {}, seed)
    from ._host import Call, launch

    call = Call(fn, args, kwargs, method, grace, daemon, seed)
    context: ProcessContext[R] = launch(request, call)
    return context.results() if join else context


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
    method = _check_call(fn, args, None, start_method, 5.0, None)
    count = _whole("nprocs", nprocs)
    if count is None or count < 1:
        raise PlanError(f"nprocs={nprocs!r}: start_processes needs a whole number from 1 up")
    _refuse_while_importing()
    from ._host import Call, launch_bare

    context = launch_bare(count, Call(fn, args, None, method, 5.0, daemon))
    if not join:
        return context
    context.join()
    return None


def preload(*packages: str | None) -> None:
    """Start the template now, in the background, while the script does its own imports.

    ``xmp.preload("torch", "jax")`` on a script's first line makes its first ``spawn`` as fast as
    the later ones; ``xmp.preload(None)`` ends the templates of this process and waits for them.
    """
    if packages == (None,):
        names = None
    else:
        names = [_package(name) for name in packages]
    if _importing():
        return
    from ._host import warm_up

    warm_up(names)


def _package(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"preload({name!r}): give names of packages, or None alone to end")
    return name


# --- checks ------------------------------------------------------------------------------------


def _refuse(later: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for name, value in later.items():
        if value != _LATER[name]:
            raise PlanError(f"{name}={value!r}: xmp cannot do that yet; leave it out")
    for name, value in options.items():
        if name in _PADDLE:
            raise PlanError(f"{name}={value!r}: only for the paddle runtime; leave it out")
        known = "kwargs, runtime, devices, backend, env, seed, threads, bind, grace"
        raise TypeError(f"spawn() has no option {name!r}; it has {known}")


def _check_call(
    fn: object,
    args: object,
    kwargs: object,
    start_method: str | None,
    grace: object,
    seed: object,
) -> str:
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {type(fn).__name__}: {fn!r}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args must be a tuple or a list, not {type(args).__name__}: {args!r}")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise TypeError(f"kwargs must be a dict, not {type(kwargs).__name__}: {kwargs!r}")
    if isinstance(grace, bool) or not isinstance(grace, (int, float)):
        raise TypeError(f"grace must be a number of seconds, not {type(grace).__name__}")
    if not grace >= 0:
        raise PlanError(f"grace={grace!r}: give a number of seconds from 0 up")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed must be a whole number, not {type(seed).__name__}: {seed!r}")
    return _method(start_method)


def _method(start_method: str | None) -> str:
    if sys.platform == "win32":
        raise PlanError("xmp does not run on Windows; use WSL 2, which is a Linux")
    linux = sys.platform == "linux"
    if start_method is None:
        return "forkserver" if linux else "spawn"
    if start_method not in METHODS:
        raise PlanError(f"start_method={start_method!r}: give one of {', '.join(METHODS)}")
    if not linux and start_method != "spawn":
        raise PlanError(f"start_method={start_method!r}: on {sys.platform} there is only 'spawn'")
    return start_method


def _whole(name: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}: {value!r}")
    return int(value)


def _request(
    nprocs: object,
    runtime: str | None,
    devices: Sequence[int] | str | None,
    backend: str | None,
    env: Any,
    threads: int | None,
    bind: bool | str | None,
) -> Request:
    from ._types import Request

    count = _whole("nprocs", nprocs)
    if count is not None and count < 1 and count != -1:
        raise PlanError(f"nprocs={count}: give a number from 1 up, or None for every device")
    if devices is None:
        chosen = None
    else:
        chosen = _devices(devices)
        if count is None or count == -1:
            count = len(chosen)
    request = Request(
        nprocs=None if count == -1 else count,
        runtime=runtime,
        devices=chosen,
        backend=backend,
        threads=threads,
        bind=bind,
    )
    return _with_environment(request, env)


def _devices(devices: Sequence[int] | str) -> tuple[int, ...]:
    items = devices.split(",") if isinstance(devices, str) else list(devices)
    try:
        return tuple(int(item) if isinstance(item, str) else _position(item) for item in items)
    except ValueError:
        raise PlanError(f'devices={devices!r}: give positions such as [4, 5] or "4,5"') from None


def _position(item: object) -> int:
    position = _whole("devices", item)
    if position is None:
        raise TypeError("devices must hold whole numbers, not None")
    return position


def _with_environment(request: Request, env: Any) -> Request:
    from dataclasses import replace

    if env is None:
        return request
    if not callable(env):
        return replace(request, env=(_pairs(env),))
    from ._host import planned

    count = len(planned(request).hosts[0].replicas)
    return replace(request, env=tuple(_pairs(env(local)) for local in range(count)))


def _pairs(variables: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(variables, Mapping):
        raise TypeError(f"env must be a mapping of strings, not {type(variables).__name__}")
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env must map strings to strings: {name!r}: {value!r}")
    return tuple(sorted(variables.items()))


# --- scripts without a guard, and a replica in the caller -----------------------------------------


def _importing() -> bool:
    script = sys.modules.get("xmp._payload.script")
    return script is not None and script.importing_main()


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
) -> Results[R]:
    """``nprocs=1``: the replica is this very process, for debuggers and profilers."""
    from ._host import run_here

    with _environment_kept():
        return run_here(request, fn, args, kwargs, seed)


@contextmanager
def _environment_kept() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
