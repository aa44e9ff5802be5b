"""``sync_params_buffers``: the parameters and buffers of one trainer on all of them."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from xmp import _inside

from ._environment import refuse_paddle_on
from ._group import get_rank, refuse_unconnected

__all__ = ["is_paddles", "refuse_other_models", "sync_params_buffers"]

_FUSED = 128 * 2**20
"""Bytes in one exchange, as in Paddle (distributed/parallel.py)."""


def sync_params_buffers(
    model: Any,
    comm_group: Any = None,
    src_rank: int = 0,
    is_model_parallel: bool = False,
    fuse_params: bool = True,
    is_moe_sharding_parallel: bool = False,
) -> None:
    """Give the parameters and persistent buffers of ``model`` the values that ``src_rank`` has.

    All trainers of the group call it. Parameters with ``no_sync = True`` keep their values. A model
    of Paddle's is handed to Paddle's own function.

    Args:
        model: a ``torch.nn.Module`` or a ``paddle.nn.Layer``.
        comm_group: what ``init_parallel_env`` returned, or another group of that framework's.
        src_rank: a global rank.
        is_model_parallel: leave out parameters with ``is_distributed = True``.
        fuse_params: exchange 128 MiB at once, instead of each tensor alone.
        is_moe_sharding_parallel: parameters with ``no_sync = True`` and ``expert = True`` take
            part.

    Raises:
        TypeError: ``model`` is neither, or ``comm_group`` no group.
        ValueError: ``src_rank`` is not in the group, or has tensors of other shapes.
        RuntimeError: the trainers are not connected.
    """
    if is_paddles(model):
        refuse_paddle_on("the model")
        import paddle.distributed.parallel as paddles

        paddles.sync_params_buffers(
            model, comm_group, src_rank, is_model_parallel, fuse_params, is_moe_sharding_parallel
        )
        return
    refuse_other_models("sync_params_buffers", model)
    src = operator.index(src_rank)
    refuse_unconnected("sync_params_buffers")
    if get_rank(comm_group) < 0:
        warnings.warn(
            f"sync_params_buffers() does nothing: rank {get_rank()} is not in comm_group",
            stacklevel=2,
        )
        return
    for tensors in _exchanges(model, is_model_parallel, fuse_params, is_moe_sharding_parallel):
        _exchange(tensors, src, comm_group)


def is_paddles(model: Any) -> bool:
    """Return whether ``model`` is a layer of Paddle's."""
    layer = getattr(getattr(sys.modules.get("paddle"), "nn", None), "Layer", ())
    return isinstance(model, layer)


def refuse_other_models(what: str, model: Any) -> None:
    """Raise TypeError for what is no module of torch's."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{what} takes a torch.nn.Module or a paddle.nn.Layer, not {type(model).__name__}: "
            f"{model!r}"
        )


def _takes_part(tensor: Any, is_model_parallel: bool, is_moe: bool) -> bool:
    # torch's tensors have a method of that name, hence `is True`.
    if is_model_parallel and getattr(tensor, "is_distributed", False) is True:
        return False
    own = getattr(tensor, "no_sync", False)
    return not own or (is_moe and bool(getattr(tensor, "expert", False)))


def _exchanges(
    model: Any, is_model_parallel: bool, fuse: bool, is_moe: bool
) -> Iterator[dict[str, Any]]:
    """Yield what is sent at once: with ``fuse`` many tensors, else a single one."""
    tensors: dict[str, Any] = {}
    size = 0
    for name, tensor in model.state_dict(keep_vars=True).items():
        is_tensor = isinstance(tensor, sys.modules["torch"].Tensor)  # a module may add others
        if not (is_tensor and _takes_part(tensor, is_model_parallel, is_moe)):
            continue
        if tensors and (size >= _FUSED or not fuse):
            yield tensors
            tensors, size = {}, 0
        tensors[name] = tensor.detach()
        size += tensor.numel() * tensor.element_size()
    if tensors:
        yield tensors


def _exchange(mine: dict[str, Any], src: int, group: Any) -> None:
    sent: dict[str, Any] = _inside.broadcast(mine, src, group)
    if sent is mine:
        return
    if _shapes(sent) != _shapes(mine):
        raise ValueError(
            f"sync_params_buffers: rank {src} has {_shapes(sent)}, and rank {get_rank()} has "
            f"{_shapes(mine)}. Make the same model on all trainers"
        )
    for name, tensor in mine.items():
        tensor.copy_(sent[name])


def _shapes(tensors: dict[str, Any]) -> dict[str, Sequence[int]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
