"""Process groups of torch: their backend, who is in one, the group of the replicas of one host."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from xmp._words.replica_info import ReplicaInfo

__all__ = [
    "HostGroups", "checked", "on_loopback", "place_in", "planned", "refuse_backend", "refuse_other",
]  # fmt: skip

_NONE = "undefined"
"""The name that torch lists among its backends for a group without one."""
_INTERFACE = "GLOO_SOCKET_IFNAME"
_FORMED = "xmp/formed"
_FORMING = 5.0  # seconds


def planned(info: ReplicaInfo) -> str:
    """Return the backend of the plan; empty for torch's own choice."""
    settings = info.settings
    backend = settings.get("backend") or settings.get("default_backend") or "auto"
    return "" if backend == "auto" else backend


def checked(dist: Any, backend: str | None) -> str:
    """Return the user's backend as torch writes it; empty for None and "auto".

    Raises:
        ValueError: this torch does not have it.
    """
    if backend is None or backend.lower() == "auto":
        return ""
    for entry in backend.split(","):
        named = entry.rpartition(":")[2].strip()
        if named.lower() == _NONE or not dist.is_backend_available(named):
            known = [name for name in dist.Backend.backend_list if dist.is_backend_available(name)]
            shown = ", ".join(repr(name) for name in known if name not in ("fake", _NONE))
            raise ValueError(
                f"backend is {backend!r}, which this torch does not have. Allowed are {shown}, one "
                'for each kind of device ("cpu:gloo,cuda:nccl"), and "auto" for the runtime\'s own'
            )
    return backend.lower()


def refuse_other(dist: Any, backend: str | None, device: Callable[[], Any]) -> None:
    """Raise ValueError if the default group does not use the user's backend for this device."""
    wanted = checked(dist, backend)
    there = dist.get_backend_config()
    if not wanted or wanted in (there, dist.get_backend()):
        return
    used = set(there.split(","))
    asked = wanted if ":" in wanted else f"{device().type}:{wanted}"
    if used.issuperset(asked.split(",")):
        return
    raise ValueError(
        f"xmp.init_process_group({backend!r}): the process group is there already, with backend "
        f"{dist.get_backend()!r}. Omit the backend, or call "
        "torch.distributed.destroy_process_group() before"
    )


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let gloo listen on loopback, unless the user has named an interface.

    Even in a group of one gloo opens a port, by default at the address of the host's name.
    """
    if os.environ.get(_INTERFACE):
        yield
        return
    os.environ[_INTERFACE] = "lo" if sys.platform == "linux" else "lo0"
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


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
        self.broken = ""
        """Why the default group cannot be used any more; empty if it can."""

    def formed(self, dist: Any, rank: int) -> None:
        """Note for the others that this rank has formed the default group."""
        with suppress(Exception):  # a store of the program's own may lack it
            dist.distributed_c10d._get_default_store().set(f"{_FORMED}/{rank}", "")

    def wait_until_all_have_formed(self, dist: Any) -> None:
        """Wait, for some seconds, until all ranks have formed the default group that this one has.

        Gloo's ranks connect pair by pair. Where one closes its connections before all pairs are up,
        another fails to form the group, and a third waits for that one for ever.
        """
        store = dist.distributed_c10d._get_default_store()
        if not store.check([f"{_FORMED}/{dist.get_rank()}"]):
            return  # the program has formed it
        keys = [f"{_FORMED}/{rank}" for rank in range(dist.get_world_size())]
        end = time.monotonic() + _FORMING
        while not store.check(keys) and time.monotonic() < end:
            time.sleep(0.005)

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


def refuse_backend(backend: str | None, runtime: str) -> None:
    """Raise ValueError for a named backend; None and "auto" are what the runtime does anyway."""
    if backend not in (None, "auto"):
        raise ValueError(
            f"xmp.init_process_group({backend!r}): runtime {runtime!r} connects the replicas "
            "itself, without a process group of torch's. Omit the backend, or launch with "
            'runtime="cpu" or "cuda"'
        )
