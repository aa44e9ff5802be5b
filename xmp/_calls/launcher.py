"""``launcher``: a call of the decorated function launches it on every device of this host."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from xmp import _inside
from xmp._os import signals
from xmp._words.errors import PlanError, brief, wrong_type

from .launch import as_rank
from .spawn import launched, public

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from xmp._plan.clusters.per_device import Started
    from xmp._words.types import StartMethod, WorldByHand

    from .options import Asked
    from .spawn import LaunchOptions

    class LauncherOptions(LaunchOptions, total=False):
        """The keywords of ``launcher``."""

        nprocs: int | None
        start_method: StartMethod | None
        rank_start: int | None
        world_size: int | None
        master_ip: str | None
        port: int | None


__all__ = ["WithoutRank", "launcher", "without_rank"]

P = ParamSpec("P")
R = TypeVar("R")

_OF_THE_CALL = ("fn", "args", "kwargs", "join", "daemon")
_OF_HOSTS = ("rank_start", "world_size", "master_ip", "port")
_MOST_PORT = 65535


@overload
def launcher(fn: Callable[P, R], **options: Unpack[LauncherOptions]) -> Callable[P, list[R]]: ...


@overload
def launcher(
    fn: None = None, **options: Unpack[LauncherOptions]
) -> Callable[[Callable[P, R]], Callable[P, list[R]]]: ...


@public
def launcher(
    fn: Callable[..., Any] | None = None,
    *,
    nprocs: int | None = None,
    start_method: StartMethod | None = None,
    rank_start: int | None = None,
    world_size: int | None = None,
    master_ip: str | None = None,
    port: int | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Make a function without a rank launch itself: ``@xmp.launcher``, ``@xmp.launcher(nprocs=2)``.

    ``train(*args, **kwargs)`` then runs ``train`` with these arguments in every replica of this
    host and returns the list of what they returned, by local rank. The process group is ready
    before the function, and its replica's device is waited for after it. In a replica the decorated
    name calls the function itself. To decorate starts nothing, so ``train`` may be a module's;
    ``xmp.launcher(train, nprocs=2)(*args)`` launches a function that is not decorated. In a process
    that torchrun, Slurm or MPI started for one device, the function runs there as that rank, as
    under ``launch``, and the list has its result alone.

    Args:
        fn: a function, a method, or any other callable but a class; not a coroutine or generator.
        nprocs: replicas on this host, as for ``spawn``: an explicit 1 runs the function here,
            unless there are several hosts.
        start_method: as for ``spawn``.
        rank_start: the global rank of this host's first replica, a multiple of ``nprocs``; 0 if
            left out. This, ``master_ip`` and ``port`` only together with ``world_size``.
        world_size: the replicas of all hosts together, each of which makes this call; None: the
            hosts that a scheduler's variables name, or this host alone.
        master_ip: the address of the first host; needed where there are several.
        port: the port at which the hosts meet on the first one, the same for all; None or 0 for the
            runtime's documented one (torch: 29500). A single host needs none.
        options: those of ``spawn`` but ``args kwargs join daemon``. Without ``backend`` it is the
            runtime's own; torch has to be installed for it.

    Raises:
        PlanError, TypeError: the options do not fit together, ``fn`` cannot be launched, or the
            arguments of a call do not fit it. Else a call raises what ``spawn`` raises.
    """

    _refuse_unknown(options)
    world = _world(rank_start, world_size, master_ip, port)
    given = {**options, "nprocs": nprocs, "start_method": start_method}
    if fn is None:
        return lambda function: _decorated(function, given, world)
    return _decorated(fn, given, world)


def _decorated(
    fn: Callable[..., Any], options: dict[str, Any], world: WorldByHand | None
) -> Callable[..., Any]:
    from .call_checks import LAUNCHES, check_arguments, check_body

    check_body(fn)

    def call(*args: Any, **kwargs: Any) -> Any:
        if _inside.is_in_function():
            with signals.apart():
                return fn(*args, **kwargs)
        check_arguments(fn, args, kwargs)
        asked = without_rank(fn, args, kwargs, **options)
        found = _started(world)
        if found is not None:
            return list(as_rank(found, asked, grouped=True))
        return list(launched(asked, world=world, grouped=True))

    call.__name__ = getattr(fn, "__name__", type(fn).__name__)  # for tracebacks
    launching = functools.update_wrapper(public(call), fn)
    launching.__dict__[LAUNCHES] = True
    return launching


def _started(world: WorldByHand | None) -> Started | None:
    """Return the launcher as whose rank the function runs here; None where xmp launches.

    Raise PlanError where the call names hosts, and a launcher has started this process.
    """
    from xmp._plan.clusters import per_device

    if world is None:
        return per_device.started(os.environ)
    per_device.refuse(os.environ)
    return None


class WithoutRank:
    """What each replica calls: the user's function, without the rank."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        # Where the function's module travels by value, the pickler looks here.
        self.__module__ = getattr(function, "__module__", None) or __name__
        # What the launch is called, in reports and in the repr of its context.
        self.__qualname__ = getattr(function, "__qualname__", type(function).__qualname__)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, for code that looks at what it uses."""
        return self.function

    def __call__(self, rank: int, /, *args: Any, **kwargs: Any) -> Any:
        try:
            result = self.function(*args, **kwargs)
        except SystemExit as error:
            if not error.code and _inside.world_size() > 1:
                from xmp._os import log

                log.warning("rank %d: sys.exit(0) before the return; its result is None", rank)
            raise
        _inside.synchronize()
        return result


def without_rank(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any
) -> Asked:
    """Check a call of ``fn`` without a rank; options of ``spawn`` that are left out are default."""
    from .options import asked

    return asked(WithoutRank(fn), args, kwargs, **options)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    if not options:
        return
    from .options import SPAWN

    known = [option.name for option in SPAWN if option.name not in _OF_THE_CALL]
    for name in options:
        if name in _OF_THE_CALL:
            raise TypeError(
                f"launcher() takes no {name}: a call of the decorated function gives the "
                "arguments, waits, and returns the results. xmp.spawn() has it"
            )
        if name in ("hosts", "engine"):
            raise TypeError(
                f"launcher() takes no {name}: each host makes the call. xmp.launch() has it"
            )
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, [*known, *_OF_HOSTS], 1)
            meant = f". Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"launcher() got an unexpected keyword argument {name!r}{meant}")


def _world(
    rank_start: object, world_size: object, master_ip: object, port: object
) -> WorldByHand | None:
    """Return the hosts that the options name; None where they name none."""
    if rank_start is world_size is master_ip is port is None:
        return None
    from xmp._words.types import WorldByHand

    from . import checks

    start, size, number = (
        checks.whole_number(name, value)
        for name, value in (("rank_start", rank_start), ("world_size", world_size), ("port", port))
    )
    if master_ip is not None and not isinstance(master_ip, str):
        raise wrong_type("master_ip", "a string or None", master_ip)
    if size is None:
        for name, value in (("rank_start", start), ("master_ip", master_ip), ("port", number)):
            if value is not None:
                raise PlanError(
                    f"{name}={brief(value)} without world_size: give the number of replicas of all "
                    f"hosts as world_size=, or omit {name}=",
                    code="XMP-H05",
                )
        return None
    if size < 1 or (start or 0) < 0:
        raise PlanError(
            f"rank_start={start or 0}, world_size={size}: give a world_size from 1 up, and a "
            "rank_start from 0 up and below it",
            code="XMP-H05",
        )
    if not 0 <= (number or 0) <= _MOST_PORT:
        raise PlanError(
            f"port={number}: give a number from 1 to {_MOST_PORT}, or None", code="XMP-P01"
        )
    return WorldByHand(start or 0, size, master_ip or "", number or 0)
