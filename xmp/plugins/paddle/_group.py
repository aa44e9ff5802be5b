"""``init_parallel_env``, ``get_rank`` and ``get_world_size``: with torch, its process group."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from typing import Any

from xmp import _inside
from xmp._plan.clusters.launchers import TORCHRUN
from xmp._words.errors import PlanError

from ._environment import (
    ParallelEnv,
    own_place,
    paddle_dist,
    paddle_runs,
    refuse_paddle_on,
    torch_is_connected,
    trainer,
)
from ._trainer import BACKEND, GPU, Trainer, meeting_place, read

__all__ = ["get_rank", "get_world_size", "init_parallel_env", "refuse_unconnected"]

_BACKENDS = {"gloo": "", "nccl": "cuda", "xccl": "xpu"}
"""Paddle's backends that torch has as well, and the kind of device that each needs."""


def init_parallel_env(nccl_config: Any = None) -> Any:
    """Connect this process with the other trainers, and return the group of all of them.

    A second call returns the same group. In a world of one it warns and returns None, as Paddle
    does. Where Paddle runs, this is Paddle's own function, after a check of its variables.

    In programs of torch the group is torch's default process group (None where JAX connects the
    replicas), which a replica of xmp's forms as ``xmp.init_process_group`` does. A process that
    Paddle's launcher has started meets the others at MASTER_ADDR and MASTER_PORT, at PADDLE_MASTER
    or at the first of PADDLE_TRAINER_ENDPOINTS; it gets RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, so that xmp's and torch's functions know the same
    world. PADDLE_DISTRI_BACKEND names the backend, PADDLE_PG_TIMEOUT (in milliseconds) limits each
    collective.

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
            "NCCL's own variables (NCCL_…)",
            code="XMP-P12",
        )
    env = ParallelEnv()  # reads, and checks, all variables
    if env.world_size < 2:
        warnings.warn(
            "xmp.compat.paddle.init_parallel_env() does nothing: this process is the only trainer. "
            "Start more by xmp.compat.paddle.spawn or xmp.spawn, or with Paddle's launcher",
            stacklevel=2,
        )
        return None
    if "paddle" in sys.modules and "torch" not in sys.modules:
        refuse_paddle_on("the framework of this program")
    backend = _backend()
    new = None if torch_is_connected() else trainer()
    if new is not None:
        _export(new)
    _inside.init_process_group(backend, timeout=env.pg_timeout / 1000)
    if new is not None:
        atexit.register(_leave)
    return sys.modules["torch.distributed"].group.WORLD if torch_is_connected() else None


def get_rank(group: Any = None) -> int:
    """Return this trainer's rank in ``group``, -1 outside of it; without a group its global rank.

    ``init_parallel_env()`` need not have been called.

    Args:
        group: a process group of torch's; where Paddle runs, of Paddle's.

    Raises:
        TypeError: ``group`` is none. PlanError: as ``ParallelEnv``.
    """
    if paddle_runs():
        return int(paddle_dist().get_rank(group))
    return own_place()[0] if group is None else _inside.rank(group)


def get_world_size(group: Any = None) -> int:
    """Return the number of trainers in ``group``, -1 outside of it; without a group, of all.

    Args:
        group: as for ``get_rank``, which raises the same errors.
    """
    if paddle_runs():
        return int(paddle_dist().get_world_size(group))
    return own_place()[1] if group is None else _inside.world_size(group)


def refuse_unconnected(what: str) -> None:
    """Raise RuntimeError, for ``what``, where Paddle's launcher started trainers that are apart."""
    found = trainer()
    if found is not None and found.world_size > 1 and not torch_is_connected():
        raise RuntimeError(
            f"{what} needs the {found.world_size} trainers connected: call init_parallel_env() "
            "before"
        )


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
                "the IPv4 address or the name of that host",
                code="XMP-P12",
            )
    return paddle_dist().init_parallel_env(nccl_config)


def _leave() -> None:
    """Destroy the process group before Python ends; Paddle's programs have no call for that.

    The group's threads would run on while the interpreter ends, and abort the process. After
    ``destroy_process_group`` reference cycles of torch's DistributedDataParallel still hold the
    group (torch 2.13): they are collected.
    """
    if torch_is_connected():
        sys.modules["torch.distributed"].destroy_process_group()
    gc.collect()


def _export(found: Trainer) -> None:
    """Set the variables by which torch, and xmp's own functions, know this trainer."""
    address, port = meeting_place(os.environ, found.world_size)
    values = {
        TORCHRUN.rank: found.rank,
        TORCHRUN.world: found.world_size,
        TORCHRUN.local_rank: found.local_rank,
        TORCHRUN.local_world: found.local_world_size,
        TORCHRUN.address: address,
        TORCHRUN.port: port,
    }
    kind = getattr(_inside.device(), "type", "")
    given = found.local_rank if found.device_id is None else found.device_id
    if kind == "cuda" and given != found.local_rank:
        raise PlanError(
            f"{GPU}={os.environ[GPU]} gives local rank {found.local_rank} the GPU {given}, and xmp "
            f"would give it GPU {found.local_rank}. Choose the GPUs by CUDA_VISIBLE_DEVICES in "
            "place of --gpus",
            code="XMP-P08",
        )
    os.environ.update({name: str(value) for name, value in values.items()})
    if kind == "cuda":
        sys.modules["torch"].cuda.set_device(found.local_rank)


def _backend() -> str | None:
    """Return the backend that PADDLE_DISTRI_BACKEND names; None for the device's usual one.

    Raise PlanError for one that torch or this trainer's device does not have.
    """
    asked = os.environ.get(BACKEND, "auto")
    if asked == "auto":
        return None
    device = _inside.device()
    fitting = [name for name, kind in _BACKENDS.items() if kind in ("", getattr(device, "type", 0))]
    if asked not in fitting:
        raise PlanError(
            f"{BACKEND} is {asked!r}; for this trainer's device, {str(device)!r}, torch has "
            f"{', '.join(map(repr, fitting))}, of which 'auto' takes the usual one",
            code="XMP-P12",
        )
    return asked
