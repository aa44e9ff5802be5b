"""Groups of replicas: a replica's place in one, and the collectives that it has there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .identity import ReplicaState, current, framework_of, whose_child

if TYPE_CHECKING:
    from xmp._words.framework import Framework, Members

__all__ = ["local_group", "members", "needed", "rank", "refuse_in_child", "world_size"]


def rank(group: Any = None) -> int:
    """Return this replica's index among all replicas of all hosts: 0 … ``world_size() - 1``.

    In a child of a replica (a worker of a data loader, a process of multiprocessing with any start
    method) this and all else that describes the replica has the same value as in the replica.

    Args:
        group: a process group of torch's: the index among its replicas, -1 outside of it.

    Raises:
        TypeError: ``group`` is not a process group.
        ValueError: torch does not know ``group``.
        RuntimeError: the runtime has no groups; or, with ``group``, this is a child of a replica.
    """
    state = current()
    return state.info.rank if group is None else _members(state, "rank", group).rank


def world_size(group: Any = None) -> int:
    """Return the number of replicas on all hosts together; 1 outside a launch.

    Args:
        group: a process group of torch's: the number of its replicas, -1 outside of it.

    Raises:
        TypeError: ``group`` is not a process group.
        ValueError: torch does not know ``group``.
        RuntimeError: the runtime has no groups; or, with ``group``, this is a child of a replica.
    """
    state = current()
    if group is None:
        return state.info.world_size
    view = _members(state, "world_size", group)
    return -1 if view.rank < 0 else len(view.ranks)


def local_group() -> Any:
    """Return the process group of this host's replicas, for ``group=`` of collectives.

    These are xmp's and torch's. The first call forms the group, and the default group if there is
    none yet: all replicas make it together. Later calls return the same group. On a single host it
    is the default group itself.

    Raises:
        RuntimeError: the runtime has no groups, there is no framework, or this is a child of a
            replica.
    """
    state = current()
    framework = needed(state, "local_group")
    make = getattr(framework, "local_group", None)
    group = None if make is None else make()
    if group is None:
        raise _without_groups(state, framework, "xmp.local_group()")
    return group


def members(state: ReplicaState, what: str, group: Any) -> Members:
    """Return the collectives of ``group``, for ``xmp.<what>(group=…)``.

    Raises:
        ValueError: this replica is not in the group.
    """
    view = _members(state, what, group)
    if view.rank < 0:
        raise ValueError(
            f"xmp.{what}(group=…): rank {state.info.rank} is not in the group. Call it on the "
            "group's own replicas alone: where xmp.rank(group) is not -1"
        )
    return view


def needed(state: ReplicaState, what: str) -> Framework:
    """Return the framework, for ``xmp.<what>()``.

    Raises:
        RuntimeError: there is none, or this is a child of a replica.
    """
    refuse_in_child(what)
    framework = framework_of(state)
    if framework is not None:
        return framework
    if not state.outside:
        raise RuntimeError(
            f"xmp.{what}() needs a framework to connect replicas (this launch has "
            f"{state.info.world_size}), and runtime={state.info.runtime!r} brings none; install "
            'torch or jax and launch with runtime="cpu", "jax" or "cuda"'
        )
    if state.info.world_size == 1:
        raise RuntimeError(f"xmp.{what}() needs torch or jax; install one of them")
    raise RuntimeError(
        f"xmp.{what}() needs torch or jax to connect the {state.info.world_size} processes that "
        "this process's environment announces (RANK and WORLD_SIZE, or Slurm's or MPI's "
        "variables); install one of them"
    )


def refuse_in_child(what: str) -> None:
    """Raise RuntimeError, for ``xmp.<what>()``, in a child of a replica."""
    child = whose_child()
    if child:
        raise RuntimeError(
            f"xmp.{what}() was called in {child} and connects the processes of the replicas alone. "
            "Call it in the replica's function, and give the child what it returns: as an argument "
            "or through a queue"
        )


def _members(state: ReplicaState, what: str, group: Any) -> Members:
    framework = needed(state, what)
    find = getattr(framework, "members", None)
    view: Members | None = None if find is None else find(group)
    if view is None:
        raise _without_groups(state, framework, f"xmp.{what}(group=…)")
    return view


def _without_groups(state: ReplicaState, framework: Framework, call: str) -> RuntimeError:
    runtime = state.info.runtime or type(framework).__name__.lower()  # "Jax", of another launcher
    return RuntimeError(
        f"{call}: runtime {runtime!r} has no groups of some replicas. Leave group= out, or launch "
        'with runtime="cpu" or "cuda", whose replicas form process groups of torch\'s'
    )
