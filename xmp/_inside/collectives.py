"""What replicas do together: collectives, heartbeats, ``preempted``."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeVar

from xmp._plan.numbers import number_of_seconds
from xmp._words.errors import brief

from .groups import members, needed
from .identity import ReplicaState, child_apart, current, framework_of, installed
from .joining import Joined, data, within
from .limits import Limit

if TYPE_CHECKING:
    from datetime import timedelta

    from xmp._words.framework import Framework, Members
    from xmp._words.types import Op

__all__ = [
    "OPS", "all_gather", "all_reduce", "barrier", "broadcast", "heartbeat", "init_process_group",
    "note_preemption", "preempted",
]  # fmt: skip

T = TypeVar("T")

OPS = ("sum", "mean", "min", "max", "prod")
_YEARS = 1e9  # seconds: longer than any wait

_preempted = False
"""In the launcher: whether the replicas of a launch know that they are preempted."""


def init_process_group(
    backend: str | None = None, *, timeout: float | timedelta | None = None
) -> None:
    """Form torch's default process group by env://; do nothing if it exists already.

    A world of one forms a group of one, without a port. With JAX the mesh is up when the function
    starts, and this does nothing.

    Args:
        backend: a name of torch's, such as "gloo", "nccl" or "cpu:gloo,cuda:nccl"; None or "auto"
            for that of the launch (``spawn(backend=…)``), or else the runtime's own.
        timeout: a number of seconds or a ``timedelta``, for this and for every collective of the
            group; None for torch's own default.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: ``timeout`` is not positive, torch does not have ``backend``, the group already
            exists with another one, or the runtime connects the replicas without torch (JAX).
        RuntimeError: there is no framework to connect the replicas, or this is a child of one.
    """
    if backend is not None and not isinstance(backend, str):
        raise TypeError(
            f'backend must be a name such as "gloo", or None, not {type(backend).__name__}: '
            f"{backend!r}. Give a time limit as timeout="
        )
    seconds = _seconds(timeout)
    state = current()
    if state.info.world_size > 1 or backend not in (None, "auto"):
        _needed(state, "init_process_group").init_process_group(backend, seconds)
        return
    framework = framework_of(state)
    if framework is not None:
        framework.init_process_group(backend, seconds)


def _seconds(timeout: float | timedelta | None) -> float | None:
    if timeout is None:
        return None
    total = getattr(timeout, "total_seconds", None)
    seconds = number_of_seconds("timeout", timeout if total is None else total())
    if not 0 < seconds < _YEARS:
        raise ValueError(
            f"timeout is {brief(timeout)}; it must be a number of seconds above 0 (and below 1e9), "
            "or a timedelta of that length"
        )
    return seconds


def heartbeat() -> None:
    """Report that this replica makes progress: the clock of ``hang_timeout=`` starts again.

    For programs whose main thread stays in one native call, or waits for another thread, for
    longer than that limit. Call it from any thread, as often as you like: it costs a microsecond,
    and does nothing without ``hang_timeout=``. In a child of the replica, such as a worker of a
    data loader, it counts as the replica's.
    """
    state = installed()
    if state is not None and state.record is not None:
        state.record.beat()
    elif (child := child_apart()) is not None:
        child.beat()


def preempted() -> bool:
    """Return whether this launch must end soon; if so, save a checkpoint and return.

    Call it once a step, in the replica's main thread. After the launcher got SIGTERM it turns true
    in every replica at the same call, counted from the first, and stays true; no replica waits for
    another. Until then a call costs less than a microsecond. In other threads of a replica and in
    its children (workers of a data loader) calls do not count, and return what the replica's own
    latest call has returned. In the launcher it is true once that has happened in one of its
    launches; elsewhere it is false.
    """
    state = installed()
    if state is None or state.channel is None:
        return _preempted
    return state.channel.preempted(state.is_own())


def note_preemption() -> None:
    """Note, in the launcher, that the replicas of a launch know that they are preempted."""
    global _preempted
    _preempted = True


def barrier(group: Any = None, *, timeout: float | timedelta | None = None) -> None:
    """Wait until every replica of the launch, or of a process group, has called this.

    Args:
        group: a process group of torch's: only its replicas take part.
        timeout: how long to wait for the others to come: a number of seconds or a ``timedelta``;
            None: for as long as it takes. All replicas that take part give one, or none does.

    Raises:
        TimeoutError: others have not come in time; they are named, with their place where they run
            on this host. All replicas of the call raise it, late ones too, and nothing was moved.
        TypeError: ``group`` is not a process group, or ``timeout`` not a number.
        ValueError: this replica is not in ``group``, or ``timeout`` is not positive.
        RuntimeError: the runtime has no groups, or no framework connects the replicas; or this is a
            child of a replica, such as a worker of a data loader.
    """
    state, limit = current(), _seconds(timeout)
    if group is not None or state.info.world_size > 1:
        scope = _scope(state, "barrier", group)
        with _joined(state, scope, "barrier", "", limit):
            scope.barrier()


def all_reduce(
    value: T, op: Op = "sum", group: Any = None, *, timeout: float | timedelta | None = None
) -> T:
    """Reduce ``value`` over all replicas and return the result; change nothing in place.

    Args:
        value: a tensor, array or number, or a tree (dict, list, tuple) of them, of the same
            shapes on every replica.
        op: "sum", "mean", "min", "max" or "prod".
        group: a process group of torch's, to reduce over its replicas alone.
        timeout: how long to wait for the others, as for ``barrier``.

    Returns:
        The reduced value, in the form of ``value``; leaves of other types come back unchanged.
        The mean of integers is a float. Tensors come back detached from autograd's graph.

    Raises:
        TimeoutError: others have not come in time, as for ``barrier``.
        ValueError: ``op`` is another word, ``timeout`` is not positive, or this replica is not in
            the group.
        TypeError: ``group`` is not a process group, or ``timeout`` not a number.
        RuntimeError: the runtime has no groups, or no framework connects the replicas; or this is a
            child of a replica, such as a worker of a data loader.
    """
    if op not in OPS:
        raise ValueError(f"op is {op!r}; allowed are {', '.join(map(repr, OPS))}")
    state, limit = current(), _seconds(timeout)
    if group is None and state.info.world_size == 1:
        return value
    scope = _scope(state, "all_reduce", group)
    with _joined(state, scope, "all_reduce", data(op, value), limit):
        reduced: T = scope.all_reduce(value, op)
    return reduced


def broadcast(
    obj: T, src: int = 0, group: Any = None, *, timeout: float | timedelta | None = None
) -> T:
    """Return the value of the replica of rank ``src``; what the others pass does not matter.

    Args:
        obj: any picklable object; tensors and arrays in it travel as they lie in memory. Over
            several hosts, and in processes of torchrun, Slurm or MPI, only plain values, arrays
            and tensors, unless all have the same XMP_JOB_SECRET (docs/guide/security.md). A
            module's ``state_dict()`` then comes as an OrderedDict without its ``_metadata``.
        src: 0 … ``world_size() - 1``; a global rank even with ``group``, as in torch.
        group: a process group of torch's: only its replicas take part.
        timeout: how long to wait for the others, as for ``barrier``. With it the source waits for
            the others too.

    Raises:
        TimeoutError: others have not come in time, as for ``barrier``.
        TypeError: ``src`` is not an integer, ``group`` not a process group, or ``timeout`` not a
            number; ``obj`` needs the secret.
        ValueError: ``src`` is not a rank of this launch, it or this replica is not in the group, or
            ``timeout`` is not positive.
        RuntimeError: the runtime has no groups, or no framework connects the replicas; or this is a
            child of a replica, such as a worker of a data loader.
    """
    state, limit = current(), _seconds(timeout)
    source = operator.index(src)
    if not 0 <= source < state.info.world_size:
        raise ValueError(
            f"src is {source}; this launch has the ranks 0 to {state.info.world_size - 1}"
        )
    if group is None and state.info.world_size == 1:
        return obj
    scope = _scope(state, "broadcast", group)
    at = source if group is None else _index_in(scope, source)
    with _joined(state, scope, "broadcast", f"src={source}", limit):
        sent: T = scope.broadcast(obj, at)
    return sent


def all_gather(obj: T, group: Any = None, *, timeout: float | timedelta | None = None) -> list[T]:
    """Return the values of all replicas, in rank order.

    Args:
        obj: any picklable object, as for ``broadcast``; tensors and arrays may differ in shape
            between replicas.
        group: a process group of torch's: only its replicas take part.
        timeout: how long to wait for the others, as for ``barrier``.

    Returns:
        One value per replica; with ``group`` in the order of the ranks in it.

    Raises:
        TimeoutError: others have not come in time, as for ``barrier``.
        TypeError: ``group`` is not a process group, or ``timeout`` not a number.
        ValueError: this replica is not in ``group``, or ``timeout`` is not positive.
        RuntimeError: the runtime has no groups, or no framework connects the replicas; or this is a
            child of a replica, such as a worker of a data loader.
    """
    state, limit = current(), _seconds(timeout)
    if group is None and state.info.world_size == 1:
        return [obj]
    scope = _scope(state, "all_gather", group)
    with _joined(state, scope, "all_gather", "", limit):
        return list(scope.all_gather(obj))


def _index_in(view: Framework | Members, source: int) -> int:
    """Return the rank in a group of a global rank."""
    ranks: tuple[int, ...] = getattr(view, "ranks", ())
    if source not in ranks:
        shown = ", ".join(map(str, ranks))
        raise ValueError(f"src is {source}; the group has the (global) ranks {shown}")
    return ranks.index(source)


def _joined(
    state: ReplicaState,
    scope: Framework | Members,
    operation: str,
    data: Hashable,
    seconds: float | None,
) -> Joined:
    """Return the context in which a collective of these replicas runs."""
    name: str = getattr(scope, "group_name", "")  # none: all replicas
    group = within(state, name, getattr(scope, "ranks", ()))
    limit = None if seconds is None else Limit(state, scope, seconds)
    gather = scope.all_gather if state.info.world_size > state.info.local_world_size else None
    abandon = getattr(scope, "abandon", None)
    return Joined(state, operation, data, group, abandon, limit, gather)


def _scope(state: ReplicaState, what: str, group: Any) -> Framework | Members:
    """Return the replicas that take part in a collective; asking counts as a heartbeat."""
    if group is None:
        return _needed(state, what)
    heartbeat()
    return members(state, what, group)


def _needed(state: ReplicaState, what: str) -> Framework:
    """Return the framework for a collective; asking for it counts as a heartbeat."""
    heartbeat()
    return needed(state, what)
