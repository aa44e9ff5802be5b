"""The framework of this process, Paddle or torch, and its place among the trainers."""

from __future__ import annotations

import os
import sys
from typing import Any

from xmp import _inside
from xmp._plan.clusters.launchers import TORCHRUN, TRAINERS
from xmp._words.errors import PlanError

from ._trainer import TIMEOUT, Trainer, current_endpoint, endpoints, integer, read
from .runtime import RANK

__all__ = [
    "ParallelEnv",
    "own_place",
    "paddle_dist",
    "paddle_runs",
    "refuse_paddle_on",
    "torch_is_connected",
    "trainer",
]

_RINGS = "FLAGS_nccl_nrings"
_HALF_AN_HOUR = 1_800_000  # ms
_YEARS = 10**12  # ms: longer than any wait
_STANDARD = ("", "cpu", "cuda", "gpu", "rocm", "xpu")
"""Kinds of device for which Paddle needs no plugin."""


def trainer() -> Trainer | None:
    """Return the trainer that Paddle's launcher made of this process, else None.

    It is None in a replica of xmp's.

    Raises:
        PlanError: as ``_trainer.read``, or RANK or WORLD_SIZE says something else.
    """
    found = None if _inside.is_replica() else read(os.environ)
    if found is None:
        return None
    for name, paddles, value in (
        (TORCHRUN.rank, TRAINERS.rank, found.rank),
        (TORCHRUN.world, TRAINERS.world, found.world_size),
    ):
        if os.environ.get(name, "").strip() not in ("", str(value)):
            raise PlanError(
                f"{paddles} says {value}, and {name}={os.environ[name]}: two launchers have set "
                "variables for this process. Unset those of the one that did not start it",
                code="XMP-P08",
            )
    return found


def own_place() -> tuple[int, int]:
    """Return this process's rank and the number of trainers, in a program of torch."""
    found = trainer()
    if found is not None:
        return found.rank, found.world_size
    return _inside.rank(), _inside.world_size()


class ParallelEnv:
    """This process's place among the trainers, as it is when the object is made.

    In a replica it comes from xmp. In other processes of torch it comes from the variables of
    Paddle's launcher, or from those of torchrun, Slurm or MPI. Where Paddle runs, all values are
    Paddle's own.

    Raises:
        PlanError: a variable of Paddle's launcher is missing, wrong, or contradicts another.
    """

    rank: int
    """The global rank: 0 to ``world_size`` - 1."""
    local_rank: int
    """The global rank, as in Paddle; the rank on this host is ``xmp.local_rank()``."""
    world_size: int
    """The number of trainers on all hosts together."""
    nranks: int
    """The same as ``world_size``."""
    device_id: int
    """The number of this trainer's device on its host; 0 on the CPU.

    Paddle documents 0 too; a Paddle 3.3.1 that is built for the CPU raises AttributeError.
    """
    dev_id: int
    """The same as ``device_id``."""
    device_type: str
    """The kind of device where Paddle needs a plugin for it; empty for CPU, GPU and XPU."""
    current_endpoint: str
    """The "address:port" of this trainer; empty where no endpoint is planned."""
    trainer_endpoints: list[str]
    """The endpoints in the order of the ranks; ``[""]`` where none are planned."""
    nrings: int
    """FLAGS_nccl_nrings, 1 to 8; 1 by default. torch has no such setting."""
    pg_timeout: int
    """The time limit of the process group in milliseconds: PADDLE_PG_TIMEOUT, or 1800000."""

    def __init__(self) -> None:
        if paddle_runs():
            own = paddle_dist().ParallelEnv()
            self.__dict__.update({name: getattr(own, name, 0) for name in _NAMES})
        else:
            self.__dict__.update(_torchs_values())
        self.local_rank, self.nranks, self.dev_id = self.rank, self.world_size, self.device_id


_NAMES = (
    *("rank", "world_size", "device_id", "device_type", "current_endpoint", "trainer_endpoints"),
    *("nrings", "pg_timeout"),
)


def _torchs_values() -> dict[str, Any]:
    rank, world = own_place()
    info = _inside.replica()
    if _inside.is_replica():
        own, all_of_them = info.endpoint, list(info.endpoints) or [""]
    else:
        own, all_of_them = current_endpoint(os.environ), endpoints(os.environ)
    return {
        "rank": rank,
        "world_size": world,
        "device_id": _device_id(),
        "device_type": "" if info.device_type in _STANDARD else info.device_type,
        "current_endpoint": own,
        "trainer_endpoints": all_of_them,
        "nrings": integer(os.environ, _RINGS, 1, 8) or 1,
        "pg_timeout": integer(os.environ, TIMEOUT, 1, _YEARS) or _HALF_AN_HOUR,
    }


def _device_id() -> int:
    if _inside.is_replica():
        return _inside.replica().device_id
    found = trainer()
    if found is not None:
        return found.device_id or 0
    if _inside.world_size() == 1 or "torch" not in sys.modules:
        return 0
    return getattr(_inside.device(), "index", None) or 0  # under torchrun


def paddle_runs() -> bool:
    """Return whether Paddle connects the replicas, or would connect them.

    In a replica the runtime decides. Elsewhere Paddle must be loaded; if torch is loaded too,
    Paddle's launcher must have started this process, and torch must have no process group.
    """
    if _inside.is_replica():
        return _inside.replica().runtime == "paddle"
    if "paddle" not in sys.modules:
        return False
    return "torch" not in sys.modules or (RANK in os.environ and not torch_is_connected())


def refuse_paddle_on(what: str) -> None:
    """Raise PlanError for ``what``, which is Paddle's, in a replica of another runtime."""
    if _inside.is_replica() and not paddle_runs():
        raise PlanError(
            f"{what} is Paddle's, and this launch has runtime {_inside.replica().runtime!r}, which "
            'does not connect Paddle. Launch with runtime="paddle"',
            code="XMP-P06",
        )


def paddle_dist() -> Any:
    """Import ``paddle.distributed``."""
    import paddle.distributed

    return paddle.distributed


def torch_is_connected() -> bool:
    """Return whether torch has a process group."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())
