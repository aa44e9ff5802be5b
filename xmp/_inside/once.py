"""What one replica does for the others: ``once_per_host`` and ``rank_zero_only``."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from xmp._os import signals

from .collectives import heartbeat
from .groups import needed, rank
from .identity import Channel, ReplicaState, current, launch_key, whose_child
from .joining import Group, Joined

__all__ = ["once_per_host", "rank_zero_only"]

T = TypeVar("T")
P = ParamSpec("P")

_FIRST_OF_HOST = Group(1, 1)
"""What the others wait for in ``once_per_host``: calls of its own, of local rank 0."""


class _Making(threading.local):
    """The values of ``once_per_host`` that this thread is making, by key."""

    def __init__(self) -> None:
        self.keys: list[str] = []


_making = _Making()


def once_per_host(fn: Callable[[], T]) -> T:
    """Call ``fn`` on the first replica of each host and return its value on all of that host.

    For what a host needs once: a download, a tokenised data set. Every replica of a host must
    make the same calls of ``once_per_host`` in the same order. Large arrays in the value are
    mapped, not copied. What ``fn`` raises, even a ``BaseException``, is raised on every replica.
    A call within ``fn`` just calls its own function.

    In children of the replicas (workers of a data loader, whatever their start method), in threads
    that a replica starts and in signal handlers there is no common order. A call there is known by
    its function: the code of ``fn`` and the plain values that it holds (its closure, defaults, the
    arguments of a ``partial``, the attributes of a method's object). The first to ask calls ``fn``,
    all others of this host get the value, and so do later calls of the same function: the last 64
    values are kept. What ``fn`` raises there is raised in those that wait, and not kept. These
    calls do not count among those of the replica itself.

    Args:
        fn: a function without arguments, whose value can be pickled.

    Returns:
        The value of ``fn`` on this host.

    Raises:
        RuntimeError: the first replica has left its function without this call; or ``fn`` has
            returned what cannot be pickled, on all others.
    """
    state = current()
    if state.channel is None and state.info.local_world_size > 1:
        return _once_by_gathering(state, fn)
    own, child = state.is_own(), bool(whose_child())
    if state.channel is None or (state.info.local_world_size == 1 and not child):
        return fn()
    if own and not signals.in_handler():
        if _making.keys:
            return fn()  # for all of this host already
        key = f"once_per_host/{state.call.number}/{next(state.call.once_calls)}"
        if state.info.local_rank == 0:
            return _shared(state.channel, key, fn, owner=0)
        with Joined(state, "once_per_host", group=_FIRST_OF_HOST):
            return _shared(state.channel, key, fn, owner=0)
    with signals.deferred():
        from .same_call import name_of  # most programs make no such call

    name = f"once_per_host/{state.call.number}/{name_of(fn)}"
    return fn() if name in _making.keys else _shared(state.channel, name, fn, kept=True)


def _shared(channel: Channel, key: str, fn: Callable[[], T], **how: Any) -> T:
    def make() -> T:
        _making.keys.append(key)
        try:
            return fn()
        finally:
            _making.keys.remove(key)

    return channel.share(key, make, **how)


def rank_zero_only(fn: Callable[P, T]) -> Callable[P, T | None]:
    """Decorate a function to run on rank 0 only; on all other ranks it returns None at once."""

    @functools.wraps(fn)
    def on_rank_zero(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return fn(*args, **kwargs) if rank() == 0 else None

    return on_rank_zero


def _once_by_gathering(state: ReplicaState, fn: Callable[[], T]) -> T:
    heartbeat()
    framework = needed(state, "once_per_host")
    outcome: tuple[bool, Any] | None = None
    own: BaseException | None = None
    if state.info.local_rank == 0:
        try:
            outcome = True, fn()
        except BaseException as error:  # whatever it is: the others must not wait for ever
            own, outcome = error, (False, _travelling(error))
    outcomes = framework.all_gather(outcome)
    if own is not None:
        raise own
    made = outcomes[state.info.rank - state.info.local_rank]  # a host's ranks are consecutive
    assert made is not None
    if made[0]:
        value: T = made[1]
        return value
    raise made[1] if isinstance(made[1], BaseException) else RuntimeError(made[1])


def _travelling(error: BaseException) -> BaseException | str:
    """Return the exception, or its text where it does not pickle or no pickle may be sent."""
    with signals.deferred():
        import pickle  # 2 ms, which `import xmp` need not take

    try:
        if launch_key() and isinstance(pickle.loads(pickle.dumps(error)), type(error)):
            return error
    except Exception:
        pass
    return f"{type(error).__qualname__}: {error}"
