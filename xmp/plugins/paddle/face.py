"""Paddle's launcher and parallel environment on xmp.

In a program that uses Paddle, replace ``spawn`` alone (``from xmp.compat.paddle import spawn``);
everything else of ``paddle.distributed`` stays as it is. In a program that uses torch, ``import
xmp.compat.paddle as dist`` has the names below.

Names, signatures and defaults are those of Paddle 3.3 (``paddle.distributed``, and
``paddle.DataParallel``). Where torch runs they are xmp's own; where Paddle runs they call Paddle.
"""

import sys
from typing import TYPE_CHECKING, Any

from ._data_parallel import DataParallel
from ._environment import ParallelEnv
from ._group import get_rank, get_world_size, init_parallel_env
from ._spawn import MultiprocessContext, spawn
from ._sync import sync_params_buffers

__all__ = [
    "DataParallel",
    "MultiprocessContext",
    "ParallelEnv",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "spawn",
    "sync_params_buffers",
]

_XMPS = ("all_gather", "all_reduce", "barrier", "broadcast")
_RENAMED = {
    "Group": "ProcessGroup",
    "alltoall": "all_to_all",
    "alltoall_single": "all_to_all_single",
    "get_group": "new_group",
}
"""Names of ``paddle.distributed`` that torch.distributed has under another one."""

if not TYPE_CHECKING:  # type checkers know that there are no others

    def __getattr__(name: str) -> Any:
        said = f"module 'xmp.compat.paddle' has no attribute {name!r}"
        if name.startswith("_"):  # which the import system and inspect ask for
            raise AttributeError(said)
        raise AttributeError(
            f"{said}. In a program that uses Paddle, keep `import paddle.distributed as dist`, "
            "which works in xmp's replicas, and replace spawn alone: `from xmp.compat.paddle "
            f"import spawn`. In a program that uses torch, {_in_torch(name)}"
        )


def _in_torch(name: str) -> str:
    theirs = _RENAMED.get(name, name)
    if name in _XMPS:
        return f"use xmp.{name}"
    if callable(getattr(sys.modules.get("torch.distributed"), theirs, None)):
        return f"use torch.distributed.{theirs}"
    return "see help(xmp) and torch.distributed: neither has that name"
