"""Paddle's launcher and parallel environment on xmp: ``import xmp.compat.paddle as dist``.

Names, signatures and defaults are those of Paddle 3.3 (``paddle.distributed``, and
``paddle.DataParallel``). In programs of torch they are xmp's own; where Paddle is what runs, they
call Paddle.
"""

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
