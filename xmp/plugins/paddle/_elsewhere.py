"""The error for other names of ``paddle.distributed``, which says what to use instead."""

from __future__ import annotations

__all__ = ["said_of"]

_XMPS = ("all_gather", "all_reduce", "barrier", "broadcast")
_TORCHS = (
    *("P2POp", "ReduceOp", "all_gather_object", "batch_isend_irecv", "broadcast_object_list"),
    *("destroy_process_group", "gather", "get_backend", "irecv", "is_available", "is_initialized"),
    *("isend", "new_group", "recv", "reduce", "reduce_scatter", "scatter"),
    *("scatter_object_list", "send"),
)
"""Names that torch.distributed has as well, for the same thing."""
_OTHERS = {
    "alltoall": "torch.distributed.all_to_all",
    "alltoall_single": "torch.distributed.all_to_all_single",
    "get_group": "torch.distributed.new_group, which returns the group,",
}


def said_of(module: str, name: str) -> str:
    """Return the text of an AttributeError for ``name``, which ``module`` does not have."""
    return (
        f"module {module!r} has no attribute {name!r}. In a program that uses Paddle, keep "
        "`import paddle.distributed as dist`, which works in xmp's replicas, and replace spawn "
        f"alone: `from {module} import spawn`. In a program that uses torch, {_in_torch(name)}"
    )


def _in_torch(name: str) -> str:
    if name in _XMPS:
        return f"use xmp.{name}"
    if name in _TORCHS:
        return f"use torch.distributed.{name}"
    if name in _OTHERS:
        return f"use {_OTHERS[name]} in its place"
    return "see help(xmp) and torch.distributed: neither has that name with Paddle's meaning"
