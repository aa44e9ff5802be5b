"""What user code calls in a replica: who am I, and the collectives of whatever framework is there.

The engine says once who this replica is (``install``). Before that, and in processes that other
launchers started, the same functions describe a world of one or that launcher's world, so that
one script runs with and without xmp. A context variable comes before the process-wide answer:
two replicas may be threads of one process.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import operator
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from xmp._imports import on_import

if TYPE_CHECKING:
    from xmp._types import Framework, ReplicaInfo

__all__ = [
    "OPS",
    "Channel",
    "all_gather",
    "all_reduce",
    "barrier",
    "beat",
    "broadcast",
    "channel",
    "device",
    "host_index",
    "in_a_replica",
    "init_process_group",
    "install",
    "is_thread",
    "local_rank",
    "local_world_size",
    "on_beat",
    "on_import",
    "once",
    "rank",
    "rank_zero_only",
    "replica",
    "restart_count",
    "settle",
    "uninstall",
    "world_size",
]

T = TypeVar("T")
P = ParamSpec("P")

OPS = ("sum", "mean", "min", "max", "prod")

_TORCH = "xmp._frameworks.torch_dist"
_JAX = "xmp._frameworks.jax"


class Channel(Protocol):
    """What a replica asks of its supervisor; the engine provides it."""

    def share(self, key: str, make: Callable[[], T], owner: int | None = None) -> T:
        """One local replica calls ``make`` (``owner``, or the first to ask); all get the value."""

    def preempted(self) -> bool:
        """Whether all replicas have agreed that they end at this call."""

    def turn(self, key: str) -> AbstractContextManager[None]:
        """Mutual exclusion between the local replicas; freed when its holder dies."""


class _Place:
    """One replica: who it is, what it can do, how often it called ``once``."""

    def __init__(
        self, info: ReplicaInfo, framework: Framework | None, channel: Channel | None
    ) -> None:
        self.info = info
        self.framework = framework
        self.channel = channel
        self.calls: Iterator[int] = itertools.count()


_in_this_context: ContextVar[_Place | None] = ContextVar("xmp_replica", default=None)
_in_this_process: _Place | None = None
_outside: _Place | None = None
_lock = threading.Lock()
_beat: Callable[[], None] | None = None


def install(info: ReplicaInfo, framework: Framework | None, channel: Channel | None) -> None:
    """Say who this replica is: for this context, and for the process if nobody did before."""
    global _in_this_process
    place = _Place(info, framework, channel)
    _in_this_context.set(place)
    if _in_this_process is None:
        _in_this_process = place


def settle(info: ReplicaInfo, framework: Framework | None) -> None:
    """Say what has become known since ``install``: who it is in a fork, and its framework."""
    global _in_this_process
    place = _in_this_context.get()
    assert place is not None
    place.info, place.framework = info, framework
    _in_this_process = place


def uninstall() -> None:
    """Forget it again: afterwards this process is outside a replica."""
    global _in_this_process, _outside
    if _in_this_process is _in_this_context.get():
        _in_this_process = None
    _in_this_context.set(None)
    _outside = None


def replica() -> ReplicaInfo:
    """Everything that is known about this replica, as one frozen value."""
    return _place().info


def rank() -> int:
    """This replica's index among all replicas of all hosts: 0 … ``world_size() - 1``."""
    return _place().info.rank


def local_rank() -> int:
    """This replica's index among those of its host: 0 … ``local_world_size() - 1``."""
    return _place().info.local_rank


def world_size() -> int:
    """The number of replicas on all hosts together; 1 outside a launch."""
    return _place().info.world_size


def local_world_size() -> int:
    """The number of replicas on this host; 1 outside a launch."""
    return _place().info.local_world_size


def host_index() -> int:
    """Which of the launch's hosts this is, from 0."""
    return _place().info.host_index


def restart_count() -> int:
    """How often this launch has been restarted so far."""
    return _place().info.restart_count


def is_thread() -> bool:
    """Whether this replica shares its process with others, as threads of it."""
    return int(_place().info.settings.get("threads_per_process", "1")) > 1


def device() -> Any:
    """This replica's device, as its framework names it.

    ``torch.device("cuda", 3)``, ``torch.device("cpu")``, a ``jax.Device``; the plan's own name
    of it (a string) where no framework is in the replica.
    """
    place = _place()
    framework = _framework(place)
    return place.info.device if framework is None else framework.device()


def init_process_group(timeout: float | None = None) -> None:
    """Form torch's default process group by env://; does nothing if it is there already.

    With JAX the mesh is up when the function starts, and this does nothing.

    Args:
        timeout: seconds for this and for every collective; None for torch's own default.

    Raises:
        ValueError: ``timeout`` is not positive.
        RuntimeError: there are several replicas and no framework to connect them.
    """
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
    place = _place()
    if place.info.world_size > 1:
        _needed(place, "init_process_group").init_process_group(timeout)
        return
    framework = _framework(place)
    if framework is not None:
        framework.init_process_group(timeout)


def on_beat(beat: Callable[[], None]) -> None:
    """Call this whenever the program shows that it gets on."""
    global _beat
    _beat = beat


def beat() -> None:
    """Tell that this replica gets on: with ``hang_timeout=`` the clock starts anew.

    For programs whose main thread stays in one native call, or waits for a thread that works, for
    longer than that. May be called from any thread, as often as you like; costs a microsecond,
    and does nothing where nobody asked.
    """
    if _beat is not None:
        _beat()


def barrier() -> None:
    """Wait until every replica of the launch is here."""
    place = _place()
    if place.info.world_size > 1:
        _needed(place, "barrier").barrier()


def all_reduce(value: T, op: str = "sum") -> T:
    """``value`` reduced over all replicas; nothing is changed in place.

    Args:
        value: a tensor, array or number, or a tree (dict, list, tuple) of them, of the same
            shapes on every replica; leaves of other types come back unchanged. The mean of
            integers is a float. Tensors come back detached from autograd's graph.
        op: "sum", "mean", "min", "max" or "prod".

    Raises:
        ValueError: ``op`` is another word.
        RuntimeError: there are several replicas and no framework to connect them.
    """
    if op not in OPS:
        raise ValueError(f"op is {op!r}; allowed are {', '.join(map(repr, OPS))}")
    place = _place()
    if place.info.world_size == 1:
        return value
    reduced: T = _needed(place, "all_reduce").all_reduce(value, op)
    return reduced


def broadcast(obj: T, src: int = 0) -> T:
    """What the replica of rank ``src`` holds; what the others pass does not matter.

    Args:
        obj: any picklable object; tensors and arrays in it travel as they lie in memory.
        src: 0 … ``world_size() - 1``.

    Raises:
        TypeError: ``src`` is not an integer.
        ValueError: ``src`` is not a rank of this launch.
        RuntimeError: there are several replicas and no framework to connect them.
    """
    place = _place()
    source = operator.index(src)
    if not 0 <= source < place.info.world_size:
        raise ValueError(
            f"src is {source}; this launch has the ranks 0 to {place.info.world_size - 1}"
        )
    if place.info.world_size == 1:
        return obj
    sent: T = _needed(place, "broadcast").broadcast(obj, source)
    return sent


def all_gather(obj: T) -> list[T]:
    """What every replica holds, in rank order.

    Args:
        obj: any picklable object; tensors and arrays may differ in shape between replicas.

    Raises:
        RuntimeError: there are several replicas and no framework to connect them.
    """
    place = _place()
    if place.info.world_size == 1:
        return [obj]
    return list(_needed(place, "all_gather").all_gather(obj))


def once(fn: Callable[[], T]) -> T:
    """Call ``fn`` on the first replica of each host and give all of that host its value.

    For what a host needs once: a download, a tokenised data set. Every replica of a host has to
    make the same calls of ``once`` in the same order. Large arrays in the value are mapped, not
    copied. What ``fn`` raises is raised on every replica.
    """
    place = _place()
    if place.info.local_world_size == 1:
        return fn()
    if place.channel is not None:
        return place.channel.share(f"once/{next(place.calls)}", fn, owner=0)
    return _once_by_gathering(place, fn)


def rank_zero_only(fn: Callable[P, T]) -> Callable[P, T | None]:
    """Decorator: the function runs on rank 0; on all others it returns None at once."""

    @functools.wraps(fn)
    def on_rank_zero(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return fn(*args, **kwargs) if rank() == 0 else None

    return on_rank_zero


def channel() -> Channel | None:
    """The way to the supervisor, for what is built on it; None outside a replica."""
    return _place().channel


def in_a_replica() -> bool:
    """Whether a launch has made this process; looks at no environment."""
    place = _in_this_context.get() or _in_this_process
    return place is not None and place.channel is not None


def _once_by_gathering(place: _Place, fn: Callable[[], T]) -> T:
    outcome: tuple[bool, Any] | None = None
    if place.info.local_rank == 0:
        try:
            outcome = True, fn()
        except (Exception, SystemExit) as error:
            outcome = False, _travelling(error)
    outcomes = _needed(place, "once").all_gather(outcome)
    made = outcomes[place.info.rank - place.info.local_rank]  # a host's ranks are consecutive
    assert made is not None
    if made[0]:
        value: T = made[1]
        return value
    raise made[1]


def _travelling(error: BaseException) -> BaseException:
    """The exception, or its text where it does not pickle."""
    try:
        if isinstance(pickle.loads(pickle.dumps(error)), type(error)):
            return error
    except Exception:
        pass
    return RuntimeError(f"{type(error).__qualname__}: {error}")


def _place() -> _Place:
    global _outside
    place = _in_this_context.get() or _in_this_process
    if place is not None:
        return place
    from xmp._clusters import per_device  # a program that asks for nothing need not load it

    info = per_device.identity(os.environ)  # each time: a script may set RANK itself
    with _lock:
        if _outside is None or _outside.info != info:
            _outside = _Place(info, None, None)
    return _outside


def _needed(place: _Place, what: str) -> Framework:
    """The framework for a collective, which shows that the program gets on."""
    beat()
    framework = _framework(place)
    if framework is not None:
        return framework
    if place is not _outside:
        raise RuntimeError(
            f"xmp.{what}() needs a framework to connect the {place.info.world_size} replicas, and "
            f"runtime={place.info.runtime!r} brings none; install torch or jax and launch with "
            'runtime="cpu", "jax" or "cuda"'
        )
    raise RuntimeError(
        f"xmp.{what}() needs torch or jax to connect the {place.info.world_size} processes that "
        "this process's environment announces (RANK and WORLD_SIZE, or Slurm's or MPI's "
        "variables); install one of them"
    )


def _framework(place: _Place) -> Framework | None:
    """The framework of a replica; outside, the one that this process has or could load."""
    if place.framework is None and place is _outside:
        name = _loaded_or_installed()
        if name:
            place.framework = importlib.import_module(name).attach(place.info)
    return place.framework


def _loaded_or_installed() -> str:
    jax = sys.modules.get("jax")
    if jax is not None and (jax.distributed.is_initialized() or "torch" not in sys.modules):
        return _JAX
    if "torch" in sys.modules or importlib.util.find_spec("torch") is not None:
        return _TORCH
    return ""
