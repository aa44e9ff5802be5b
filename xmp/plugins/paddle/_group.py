"""``init_parallel_env``, ``get_rank``, ``get_world_size``, and the group that they are about."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from typing import Any

from xmp import _inside
from xmp._words.errors import PlanError

from ._environment import (
    ParallelEnv,
    own_place,
    paddle_dist,
    paddle_runs,
    refuse_paddle_on,
    trainer,
)
from ._trainer import BACKEND, GPU, Trainer, meeting_place, read

__all__ = [
    "Group",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "torchs_group",
    "world_of_torch",
]

_NAME = "_default_pg"  # paddle/distributed/collective.py
_TORCHS = {"gloo": ("gloo", ""), "nccl": ("nccl", "cuda"), "xccl": ("xccl", "xpu")}
"""Paddle's backends that torch has as well: torch's name, and the kind of device that it needs."""
_PADDLES_ALONE = ("bkcl", "flagcx", "heter")


class Group:
    """The group of all trainers: torch's process group, with the names of Paddle's ``Group``.

    ``process_group`` is torch's own, for ``group=`` of torch's and xmp's collectives.
    """

    def __init__(
        self,
        rank_in_group: int,
        id: int,
        ranks: list[int],
        pg: Any = None,
        name: str | None = None,
    ) -> None:
        self._rank = rank_in_group
        self._id = id
        self._ranks = ranks
        self._group = pg
        self._name = name

    @property
    def rank(self) -> int:
        """This trainer's rank in the group; -1 outside of it."""
        return self._rank

    @property
    def ranks(self) -> list[int]:
        """The global ranks of the members."""
        return self._ranks

    @property
    def nranks(self) -> int:
        """The number of members."""
        return len(self._ranks)

    @property
    def name(self) -> str | None:
        """The name of the group: "_default_pg" for all trainers together."""
        return self._name

    @property
    def process_group(self) -> Any:
        """torch's process group; None where JAX connects the replicas."""
        return self._group

    @property
    def world_size(self) -> int:
        """The number of members; -1 on a trainer that is not one of them."""
        return self.nranks if self._rank >= 0 else -1

    @property
    def backend(self) -> str:
        """The backend in capitals, as Paddle has it: "GLOO", "NCCL" …"""
        return str(sys.modules["torch.distributed"].get_backend(self._group)).upper()

    @property
    def id(self) -> int:
        """The number of the group: 0 for all trainers together."""
        return self._id

    def is_member(self) -> bool:
        """Return whether this trainer is in the group, and not alone in it."""
        return self._rank >= 0 and self.nranks > 1

    def get_group_rank(self, rank: int) -> int:
        """Return the rank in the group of a global rank; -1 where this trainer is not a member.

        Raises:
            ValueError: the global rank is not in the group.
        """
        return self._ranks.index(rank) if self.is_member() else -1

    def get_global_rank(self, rank: int) -> int:
        """Return the global rank of a rank in the group; -1 where this trainer is not a member."""
        return self._ranks[rank] if self.is_member() else -1

    def __repr__(self) -> str:
        members = ", ".join(map(str, self._ranks))
        return (
            f"rank: {self.rank}, nranks: {self.nranks}, id: {self.id}, ranks: {members}; "
            f"name: {self.name}"
        )


_default: Group | None = None


def init_parallel_env(nccl_config: Any = None) -> Any:
    """Connect this process with the other trainers, and return the group of all of them.

    A second call returns the same group. In a world of one it warns and returns None, as Paddle
    does. Where Paddle runs, this is Paddle's own function, after a check of its variables.

    In programs of torch the group is torch's default process group, which a replica of xmp's forms
    as ``xmp.init_process_group`` does. A process that Paddle's launcher has started meets the
    others at MASTER_ADDR and MASTER_PORT, at PADDLE_MASTER or at the first of
    PADDLE_TRAINER_ENDPOINTS; it gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR
    and MASTER_PORT, so that xmp's and torch's functions know the same world. PADDLE_DISTRI_BACKEND
    names the backend, PADDLE_PG_TIMEOUT (in milliseconds) limits each collective.

    Args:
        nccl_config: for Paddle's own function; where torch runs, only None is allowed.

    Raises:
        PlanError: a variable of Paddle's launcher is missing, wrong, or contradicts another; the
            device does not have the backend; ``nccl_config`` where torch runs.
    """
    if paddle_runs():
        return _paddles(nccl_config)
    if nccl_config is not None:
        raise PlanError(
            "nccl_config is Paddle's, and torch connects these trainers: leave it out, and set "
            "NCCL's own variables (NCCL_…)"
        )
    env = ParallelEnv()  # reads, and checks, all variables
    if env.world_size < 2:
        warnings.warn(
            "xmp.compat.paddle.init_parallel_env() does nothing: this process is the only trainer. "
            "Start more by xmp.compat.paddle.spawn or xmp.spawn, or with Paddle's launcher",
            stacklevel=2,
        )
        return None
    return _made(env.rank) or _connected(env)


def get_rank(group: Any = None) -> int:
    """Return this trainer's rank in ``group``, -1 outside of it; without a group its global rank.

    ``init_parallel_env()`` need not have been called.

    Args:
        group: what ``init_parallel_env`` returned, or a process group of torch's.

    Raises:
        TypeError: ``group`` is neither. PlanError: as ``ParallelEnv``.
    """
    if paddle_runs():
        return int(paddle_dist().get_rank(group))
    if group is None:
        return own_place()[0]
    return group.rank if isinstance(group, Group) else _inside.rank(group)


def get_world_size(group: Any = None) -> int:
    """Return the number of trainers in ``group``, -1 outside of it; without a group, of all.

    Args:
        group: as for ``get_rank``, which raises the same errors.
    """
    if paddle_runs():
        return int(paddle_dist().get_world_size(group))
    if group is None:
        return own_place()[1]
    return group.world_size if isinstance(group, Group) else _inside.world_size(group)


def torchs_group(group: Any) -> Any:
    """Return torch's process group of a ``Group``; return other groups, and None, as they are."""
    return group.process_group if isinstance(group, Group) else group


def world_of_torch(what: str) -> int:
    """Return the number of trainers to ``what``, a function that needs them connected.

    Raises:
        RuntimeError: Paddle's launcher started several, and torch does not know them yet.
    """
    world = own_place()[1]
    if world > 1 and trainer() is not None and not os.environ.get("RANK"):
        raise RuntimeError(
            f"{what} needs the {world} trainers connected: call init_parallel_env() before"
        )
    return world


def _paddles(nccl_config: Any) -> Any:
    """Call Paddle's ``init_parallel_env``, which takes half of its variables for a world of one.

    So the variables are checked before; PlanError also for an IPv6 address to meet at.
    """
    found = read(os.environ)
    if found is not None and found.world_size > 1:
        address, port = meeting_place(os.environ, found.world_size)
        if ":" in address:  # parallel.py splits it at each colon
            raise PlanError(
                f"the trainers meet at [{address}]:{port}, and Paddle takes no IPv6 address. Give "
                "the IPv4 address or the name of that host"
            )
    return paddle_dist().init_parallel_env(nccl_config)


def _made(rank: int) -> Group | None:
    """Return the group of an earlier call, as long as torch has it; else None."""
    made = _default
    there = made is not None and made.rank == rank and made.process_group is _torchs_default()
    return made if there else None


def _connected(env: ParallelEnv) -> Group:
    global _default
    if "paddle" in sys.modules and "torch" not in sys.modules:
        refuse_paddle_on("the framework of this program")
    backend, found = _backend(), trainer()
    if found is not None:
        _export(found)
    is_ours = found is not None and _torchs_default() is None
    _inside.init_process_group(backend, timeout=env.pg_timeout / 1000)
    if is_ours:
        atexit.register(_leave)
    _default = Group(env.rank, 0, list(range(env.world_size)), _torchs_default(), _NAME)
    return _default


def _torchs_default() -> Any:
    dist = sys.modules.get("torch.distributed")
    return dist.group.WORLD if dist is not None and dist.is_initialized() else None


def _leave() -> None:
    """Destroy the process group before Python ends; Paddle's programs have no call for that.

    The group's threads would run on while the interpreter ends, and abort the process. After
    ``destroy_process_group`` reference cycles of torch's DistributedDataParallel still hold the
    group (torch 2.13): they are collected.
    """
    made = _default
    if made is None:
        return
    if made.process_group is _torchs_default() is not None:
        sys.modules["torch.distributed"].destroy_process_group()
    made._group = None
    gc.collect()


def _export(found: Trainer) -> None:
    """Set the variables by which torch, and xmp's own functions, know this trainer."""
    address, port = meeting_place(os.environ, found.world_size)
    values = {
        "RANK": found.rank,
        "WORLD_SIZE": found.world_size,
        "LOCAL_RANK": found.local_rank,
        "LOCAL_WORLD_SIZE": found.local_world_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    kind = getattr(_inside.device(), "type", "")
    given = found.local_rank if found.device_id is None else found.device_id
    if kind == "cuda" and given != found.local_rank:
        raise PlanError(
            f"{GPU}={os.environ[GPU]} gives local rank {found.local_rank} the GPU {given}, and xmp "
            f"would give it GPU {found.local_rank}. Choose the GPUs by CUDA_VISIBLE_DEVICES in "
            "place of --gpus"
        )
    os.environ.update({name: str(value) for name, value in values.items()})
    if kind == "cuda":
        sys.modules["torch"].cuda.set_device(found.local_rank)


def _backend() -> str | None:
    """Return torch's name of the backend in PADDLE_DISTRI_BACKEND; None for the usual one.

    Raise PlanError for one that torch or this trainer's device does not have.
    """
    asked = os.environ.get(BACKEND, "auto")
    if asked == "auto":
        return None
    allowed = f"allowed are 'auto', {', '.join(map(repr, _TORCHS))}"
    if asked in _PADDLES_ALONE:
        raise PlanError(
            f"{BACKEND} is {asked!r}, a backend of Paddle's that torch lacks; {allowed}"
        )
    if asked not in _TORCHS:
        raise PlanError(f"{BACKEND} is {asked!r}; {allowed}")
    name, needed = _TORCHS[asked]
    kind = getattr(_inside.device(), "type", "")
    if needed and kind != needed:
        raise PlanError(
            f"{BACKEND} is {asked!r}, which needs a device of the kind {needed!r}; this trainer's "
            f"is {str(_inside.device())!r}. Set it to 'auto', or to 'gloo' for the CPU"
        )
    return name
