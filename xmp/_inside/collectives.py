"""What replicas do together: collectives of their framework, ``once_per_host``, heartbeats."""

from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .identity import ReplicaState, current, framework_of, rank

if TYPE_CHECKING:
    from xmp._types import Framework

__all__ = [
    "OPS",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "heartbeat",
    "init_process_group",
    "on_heartbeat",
    "once_per_host",
    "rank_zero_only",
]

T = TypeVar("T")
P = ParamSpec("P")

OPS = ("sum", "mean", "min", "max", "prod")

_on_heartbeat: Callable[[], None] | None = None


def init_process_group(timeout: float | None = None) -> None:
    """Form torch's default process group by env://; does nothing if it exists already.

    With JAX the mesh is up when the function starts, and this does nothing.

    Args:
        timeout: seconds for this and for every collective; None for torch's own default.

    Raises:
        ValueError: ``timeout`` is not positive.
        RuntimeError: there are several replicas and no framework to connect them.
    """
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; it must be a number of seconds above 0")
    state = current()
    if state.info.world_size > 1:
        _needed(state, "init_process_group").init_process_group(timeout)
        return
    framework = framework_of(state)
    if framework is not None:
        framework.init_process_group(timeout)


def on_heartbeat(call: Callable[[], None]) -> None:
    """Call this at every sign of progress of the program."""
    global _on_heartbeat
    _on_heartbeat = call


def heartbeat() -> None:
    """Report that this replica makes progress: the clock of ``hang_timeout=`` starts again.

    For programs whose main thread stays in one native call, or waits for another thread, for
    longer than that. Call it from any thread, as often as you like: it costs a microsecond, and
    does nothing without ``hang_timeout=``.
    """
    if _on_heartbeat is not None:
        _on_heartbeat()


def barrier() -> None:
    """Wait until every replica of the launch has called this."""
    state = current()
    if state.info.world_size > 1:
        _needed(state, "barrier").barrier()


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
    state = current()
    if state.info.world_size == 1:
        return value
    reduced: T = _needed(state, "all_reduce").all_reduce(value, op)
    return reduced


def broadcast(obj: T, src: int = 0) -> T:
    """The value of the replica of rank ``src``; what the others pass does not matter.

    Args:
        obj: any picklable object; tensors and arrays in it travel as they lie in memory.
        src: 0 … ``world_size() - 1``.

    Raises:
        TypeError: ``src`` is not an integer.
        ValueError: ``src`` is not a rank of this launch.
        RuntimeError: there are several replicas and no framework to connect them.
    """
    state = current()
    source = operator.index(src)
    if not 0 <= source < state.info.world_size:
        raise ValueError(
            f"src is {source}; this launch has the ranks 0 to {state.info.world_size - 1}"
        )
    if state.info.world_size == 1:
        return obj
    sent: T = _needed(state, "broadcast").broadcast(obj, source)
    return sent


def all_gather(obj: T) -> list[T]:
    """The values of all replicas, in rank order.

    Args:
        obj: any picklable object; tensors and arrays may differ in shape between replicas.

    Raises:
        RuntimeError: there are several replicas and no framework to connect them.
    """
    state = current()
    if state.info.world_size == 1:
        return [obj]
    return list(_needed(state, "all_gather").all_gather(obj))


def once_per_host(fn: Callable[[], T]) -> T:
    """Call ``fn`` on the first replica of each host and return its value on all of that host.

    For what a host needs once: a download, a tokenised data set. Every replica of a host must
    make the same calls of ``once_per_host`` in the same order. Large arrays in the value are
    mapped, not copied. What ``fn`` raises is raised on every replica.
    """
    state = current()
    if state.info.local_world_size == 1:
        return fn()
    if state.channel is not None:
        return state.channel.share(f"once_per_host/{next(state.once_calls)}", fn, owner=0)
    return _once_by_gathering(state, fn)


def rank_zero_only(fn: Callable[P, T]) -> Callable[P, T | None]:
    """Decorator: the function runs on rank 0; on all others it returns None at once."""

    @functools.wraps(fn)
    def on_rank_zero(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return fn(*args, **kwargs) if rank() == 0 else None

    return on_rank_zero


def _once_by_gathering(state: ReplicaState, fn: Callable[[], T]) -> T:
    outcome: tuple[bool, Any] | None = None
    if state.info.local_rank == 0:
        try:
            outcome = True, fn()
        except (Exception, SystemExit) as error:
            outcome = False, _travelling(error)
    outcomes = _needed(state, "once_per_host").all_gather(outcome)
    made = outcomes[state.info.rank - state.info.local_rank]  # a host's ranks are consecutive
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


def _needed(state: ReplicaState, what: str) -> Framework:
    """The framework for a collective; asking for it counts as a heartbeat."""
    heartbeat()
    framework = framework_of(state)
    if framework is not None:
        return framework
    if not state.outside:
        raise RuntimeError(
            f"xmp.{what}() needs a framework to connect the {state.info.world_size} replicas, and "
            f"runtime={state.info.runtime!r} brings none; install torch or jax and launch with "
            'runtime="cpu", "jax" or "cuda"'
        )
    raise RuntimeError(
        f"xmp.{what}() needs torch or jax to connect the {state.info.world_size} processes that "
        "this process's environment announces (RANK and WORLD_SIZE, or Slurm's or MPI's "
        "variables); install one of them"
    )
