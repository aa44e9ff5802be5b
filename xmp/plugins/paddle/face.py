"""Paddle's launcher and parallel environment on xmp.

In a program that uses Paddle, replace ``spawn`` alone (``from xmp.compat.paddle import spawn``);
everything else of ``paddle.distributed`` stays as it is. In a program that uses torch, ``import
xmp.compat.paddle as dist`` has the names below.

Names, signatures and defaults are those of Paddle 3.3 (``paddle.distributed``, and
``paddle.DataParallel``). Where torch runs they are xmp's own; where Paddle runs they call Paddle.
"""

from typing import TYPE_CHECKING, Any

from ._data_parallel import DataParallel
from ._environment import ParallelEnv
from ._group import Group, get_rank, get_world_size, init_parallel_env
from ._spawn import MultiprocessContext, spawn
from ._sync import sync_params_buffers

__all__ = [
    "DataParallel",
    "Group",
    "MultiprocessContext",
    "ParallelEnv",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "spawn",
    "sync_params_buffers",
]

if not TYPE_CHECKING:  # type checkers know that there are no others

    def __getattr__(name: str) -> Any:
        if name.startswith("_"):  # which the import system and inspect ask for
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ._elsewhere import said_of

        raise AttributeError(said_of("xmp.compat.paddle", name))
