"""``spawn``: a plan, then the engine."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from xmp._os import signals
from xmp._os.imports import without_collections
from xmp._os.log import users_frames
from xmp._os.skips import is_skip
from xmp._words.errors import XmpError, wrong_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import TypedDict, Unpack

    from xmp._processes import ProcessContext, Results
    from xmp._words.event import Event
    from xmp._words.types import Bind, Request, RuntimeName, StartMethod

    from .options import Asked

    class LaunchOptions(TypedDict, total=False):
        """The keywords of ``spawn`` and ``launcher`` that do not change what these return."""

        runtime: RuntimeName | None
        devices: Sequence[int] | str | None
        backend: str | None
        env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None
        seed: int | None
        threads: int | None
        bind: Bind | None
        start_timeout: float | None
        timeout: float | None
        hang_timeout: float | None
        grace: float
        max_restarts: int
        log_dir: str | os.PathLike[str] | None
        prefix: bool | str | None
        show: Collection[int] | str | int | None
        progress: bool | None
        events: Callable[[Event], object] | str | os.PathLike[str] | None

    class SpawnOptions(LaunchOptions, total=False):
        """The keywords of ``spawn`` alone."""

        kwargs: dict[str, Any] | None


__all__ = [
    "Args",
    "asked_by",
    "importing",
    "launched",
    "public",
    "refuse_while_importing",
    "spawn",
]

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=BaseException)
Args = tuple[Any, ...] | list[Any]


# --- what is the same for all public functions ----------------------------------------------------


def _save(error: XmpError, path: str | os.PathLike[str]) -> None:
    from xmp._processes import save_report

    if not isinstance(path, (str, os.PathLike)):
        raise wrong_type("path", "the path of a file", path)
    save_report(error, path, xmp_version=sys.modules["xmp"].__version__)


# Set here, since the exceptions' own module imports nothing, and `import xmp` loads this one.
XmpError._save = _save


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Defer the program's signal handlers; shorten the tracebacks of xmp's own errors.

    A handler's OSError (TimeoutError is one) must not come up where Python takes it for its own and
    goes on, as importlib does while it looks for a module or reads one, and ``os.path.exists``.
    Where the function calls code of the program, it says so (``signals.apart``).

    An unknown keyword gets a suggestion; Python itself suggests names of keywords from 3.13 on.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True  # pytest: show the caller's line, not this one
        try:
            with signals.deferred():
                result = function(*args, **kwargs)
            signals.returned()
            return result
        except BaseException as error:
            with signals.deferred():
                signals.give_up()  # a signal handler may raise between two returns
                shortened = _shorten(function, kwargs, error)
            if not shortened:
                raise
            raise error

    # A traceback says `in spawn`, the function that the user called.
    call.__code__ = call.__code__.replace(co_name=function.__name__)
    return functools.update_wrapper(call, function)


def _shorten(function: Callable[..., Any], given: Mapping[str, Any], error: BaseException) -> bool:
    """Cut xmp's frames off, unless they show what went wrong in it. Return whether it was done."""
    frames = users_frames(error.__traceback__)
    if isinstance(error, TypeError):
        _suggest(function, given, error)
    if isinstance(error, XmpError):
        if frames is not None:  # the function ran in this process: its frames are the user's
            error.__traceback__ = frames
            return True
        from xmp._os.excepthook import shown_short

        shown_short(error)
    elif not isinstance(error, KeyboardInterrupt) and not _refused(error):
        if frames is None and not is_skip(error):
            return False
        _shortened(error)
        return True
    # The user's call is above, and xmp's frames below it say nothing about the failure.
    _shortened(error).__suppress_context__ = True
    return True


_REFUSING = {*(f"_calls.{n}" for n in ("checks", "call_checks", "launcher", "options")), "_payload"}
_REFUSING |= {"_hosts.engines", "_rules.limits", "_plan.numbers", "_plan.runtimes._request_checks"}


def _refused(error: BaseException) -> bool:
    """Return whether xmp refuses an argument by this TypeError: its frames say nothing of that."""
    frames = error.__traceback__
    if not isinstance(error, TypeError) or frames is None or users_frames(frames) is not None:
        return False
    last = frames
    while last.tb_next is not None:
        last = last.tb_next
    name = str(last.tb_frame.f_globals.get("__name__")).removeprefix("xmp.")
    of_xmp = name in _REFUSING or name.startswith(("compat.", "plugins.", "testing."))
    return of_xmp or last is frames  # or Python does: it does not fit the parameters


def _shortened(error: E) -> E:
    """Drop xmp's frames between the user's call and, with ``nprocs=1``, the user's function."""
    if "IPython" in sys.modules:
        from xmp._processes import rendered

        rendered(error)
    return error.with_traceback(users_frames(error.__traceback__))


_OF_LAUNCH = ("hosts", "engine", "runtime_env", "python", "cwd", "copy_env", "ssh_options")


def _suggest(function: Callable[..., Any], given: Mapping[str, Any], error: TypeError) -> None:
    """Add the nearest keyword to Python's error about one that ``function`` does not have."""
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    unknown = [name for name in given if name not in known]
    inside = error.__traceback__ is None or error.__traceback__.tb_next is not None
    if inside or not unknown or "Did you mean" in str(error):
        return
    if unknown[0] in _OF_LAUNCH and function.__name__ in ("spawn", "start_processes"):
        error.args = (f"{error}. xmp.launch() has it",)
        return
    from difflib import get_close_matches

    for name in get_close_matches(unknown[0], known, 1):
        error.args = (f"{error}. Did you mean {name!r}?",)


# --- spawn ----------------------------------------------------------------------------------------


@overload
def spawn(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    join: Literal[True] = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    **options: Unpack[SpawnOptions],
) -> Results[R]: ...


@overload
def spawn(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    *,
    join: Literal[False],
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    **options: Unpack[SpawnOptions],
) -> ProcessContext[R]: ...


@overload
def spawn(
    fn: Callable[Concatenate[int, P], R],
    args: Args = ...,
    nprocs: int | None = ...,
    join: bool = ...,
    daemon: bool = ...,
    start_method: StartMethod | None = ...,
    **options: Unpack[SpawnOptions],
) -> Results[R] | ProcessContext[R]: ...


@public
def spawn(
    fn: Callable[Concatenate[int, P], R],
    args: Args = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: StartMethod | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    runtime: RuntimeName | None = None,
    devices: Sequence[int] | str | None = None,
    backend: str | None = None,
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    seed: int | None = None,
    threads: int | None = None,
    bind: Bind | None = None,
    start_timeout: float | None = None,
    timeout: float | None = None,
    hang_timeout: float | None = None,
    grace: float = 5.0,
    max_restarts: int = 0,
    log_dir: str | os.PathLike[str] | None = None,
    prefix: bool | str | None = None,
    show: Collection[int] | str | int | None = None,
    progress: bool | None = None,
    events: Callable[[Event], object] | str | os.PathLike[str] | None = None,
) -> Results[R] | ProcessContext[R]:
    """Run ``fn(rank, *args, **kwargs)`` on every device of this host, one replica per device.

    Args:
        fn: the function; its first argument is the global rank.
        args, kwargs: a tuple or list, and a dict, for ``fn``; sent once. CPU tensors in them are
            shared memory.
        nprocs: replicas on this host; None (or -1) for one per device. An explicit 1 with
            ``join=True`` runs ``fn`` in this process, unless the job has several hosts.
        join: wait and return the results; otherwise return a ``ProcessContext`` at once.
        daemon: with ``join=False``, end the replicas when this process ends instead of waiting.
        start_method: "forkserver" (default on Linux), "spawn" or "fork".
        runtime: "cpu", "jax", "cuda", …; None lets xmp choose, and the plan says why.
        devices: positions in what the host's mask allows: ``[4, 5]`` or ``"4,5"``.
        backend: the process group of this backend is initialised before ``fn`` starts; "auto" for
            the runtime's own.
        env: extra variables, or a function from local rank to variables. A mapping holds for
            imports too; what an import reads cannot differ between forked replicas.
        seed: for ``random``, numpy and torch, the same in every replica.
        threads: native threads of each replica; None for usable cores / replicas.
        bind: True pins each replica to its own cores; "numa" keeps them on one node.
        timeout: seconds that the whole call may take.
        start_timeout: seconds from the call until every replica is in ``fn``.
        hang_timeout: seconds without progress. While replicas wait in a collective of xmp, that
            is work of those that have not come: processor time, reading, writing, or
            ``xmp.heartbeat()``. Otherwise it is Python code in any replica's main thread, a
            collective of xmp, or ``xmp.heartbeat()``.
        grace: seconds between SIGTERM and SIGKILL when xmp ends the other replicas.
        max_restarts: how often xmp starts all replicas again after a failure, with new ports;
            ``xmp.restart_count()`` is the number of restarts so far. A replica that failed or hung
            and a supervisor that was killed are failures. Ctrl-C, a SIGTERM of this process,
            ``terminate()``, ``timeout`` (for all attempts together) and a result that cannot be
            sent end the launch, and so does the same exception (type, text, line) twice in a row,
            each time within 60 s and before a replica has returned. After a signal, an OSError and
            what may pass (network, memory) xmp waits 1, 2, 4 … 60 s. Shared tensors keep what an
            attempt has written into them; all else of ``args`` and ``kwargs`` is sent again.
        log_dir: a folder for ``rank0.stdout.log``, ``rank0.stderr.log`` … with everything that the
            replicas write; made if it is not there. Older files of these names are emptied.
        prefix: True, or text such as ``"[{rank}] "`` (also ``{local_rank}``, ``{host}``) before
            every line; only whole lines are shown.
        show: whose output is shown: "all", "none", "0", "0,2-3", ``[0, 2]``, ``range(4)`` or 0.
        progress: True shows how many replicas are in which phase until all run ``fn``: on a
            terminal and in a notebook as one line that is redrawn, elsewhere as a plain line for
            each change. None does so on a terminal and in a notebook when the start takes longer
            than 2 s; False never.
        events: gets every change of the launch's state, in order: a function that takes one
            ``xmp.Event``, or the path of a file to which each is appended as a line of JSON. The
            function runs in this process, in the thread that waits for the launch, and the launch
            waits until it returns. With ``join=False`` it gets what comes after the start when the
            program joins the context or asks it for something. If it raises, xmp says so once.

    Returns:
        ``Results`` (``join=True``): what each replica returned, in rank order. ``ProcessContext``
        (``join=False``): the handle of the running launch.

    Raises:
        PlanError: the request does not fit this host.
        TypeError: a value of a wrong type, or an argument that cannot be sent.
        PortError, StartError: nothing was started.
        ReplicaRaised, ReplicaDied: a replica failed, and xmp has ended the others.
        ReplicaTimeout: one of the time limits is over; has the stacks of all live replicas.
    """
    started: Results[R] | ProcessContext[R] = launched(asked_by(locals()))
    return started


def asked_by(values: Mapping[str, Any]) -> Asked:
    from .options import read  # not at `import xmp`

    return read(values)


def launched(asked: Asked, **fields: Any) -> Any:
    """Launch what was asked for; ``fields`` are further ones of ``Request``."""
    request = asked.requested(**fields)
    refuse_while_importing()
    if request.nprocs == 1 and asked.join and not _needs_replica(asked):
        results = _run_here(asked, request)
        if results is not None:
            return results
    with without_collections():
        from .host import launch

        call = asked.call()
    return launch(request, call, asked.join)


def _needs_replica(asked: Asked) -> bool:
    return any("spawn" in option.needs_replica for option in asked.given)


# --- scripts without a guard, and a replica in the caller -----------------------------------------


def importing() -> bool:
    """Return whether xmp is importing the user's script in this process, for its replicas."""
    script = sys.modules.get("xmp._payload.script")
    return script is not None and script.importing_main()


def refuse_while_importing() -> None:
    """End the import of a script without the ``__main__`` guard that has come to this call again.

    The function needs only what stands above the call.
    """
    if importing():
        from xmp._payload.script import MainReached

        raise MainReached


def _run_here(asked: Asked, request: Request) -> Results[Any] | None:
    """Run a single replica in this process itself, for debuggers and profilers.

    Return None in a job of several hosts, which needs a process that xmp can end.
    """
    from .here import run_here

    with _environment_kept():
        return run_here(
            *(request, asked.fn, asked.args, asked.kwargs, asked.settings.seed, asked.observer)
        )


@contextmanager
def _environment_kept() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
