"""Process groups of some replicas: who is in one, and the group of the replicas of one host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from xmp._words.replica_info import ReplicaInfo

__all__ = ["HostGroups", "place_in"]


def place_in(dist: Any, group: Any) -> tuple[int, tuple[int, ...]]:
    """Return this replica's rank in ``group`` (-1: not a member) and its members' global ranks.

    Raises:
        TypeError: ``group`` is not a process group.
        ValueError: torch does not know ``group``.
    """
    # What new_group() returns on a rank that is not in the group (torch 2.13).
    outside = dist.GroupMember.NON_GROUP_MEMBER
    if type(group) is type(outside) and group == outside:
        return -1, ()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            "group must be a torch.distributed.ProcessGroup, as torch.distributed.new_group() and "
            f"xmp.local_group() return it, not {type(group).__name__}: {group!r}"
        )
    try:
        ranks = tuple(dist.get_process_group_ranks(group))
    except KeyError:
        raise ValueError(
            "group is not a process group of this process's torch.distributed, or no longer: make "
            "it with torch.distributed.new_group() after the default group"
        ) from None
    mine = dist.get_rank()
    return (ranks.index(mine) if mine in ranks else -1), ranks


class HostGroups:
    """Makes the group of this host's replicas, once for each default group."""

    def __init__(self, info: ReplicaInfo) -> None:
        self._info = info
        self._made: tuple[Any, Any] | None = None
        self.timeout: timedelta | None = None
        """The time-out of the default group, if the user gave one."""

    def local(self, dist: Any, all_gather: Callable[[Any], Sequence[Any]]) -> Any:
        """Return the group of this host, made once for each default group.

        All replicas make the groups of all hosts, in the same order.
        ``use_local_synchronization`` would save that, but torch_xla's ``new_group`` (2.9) does not
        take it.
        """
        info, world = self._info, dist.group.WORLD
        if info.local_world_size == info.world_size:
            return world
        if self._made is None or self._made[0] is not world:
            mine = (info.rank - info.local_rank, info.local_world_size)  # consecutive ranks
            options = {} if self.timeout is None else {"timeout": self.timeout}
            made = {
                (first, size): dist.new_group(list(range(first, first + size)), **options)
                for first, size in sorted(set(all_gather(mine)))
            }
            self._made = world, made[mine]
        return self._made[1]
