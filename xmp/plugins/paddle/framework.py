"""Paddle (3.3) in a replica: ``init_parallel_env`` is called before the function runs.

A program that calls it again, as Paddle's own examples do, gets the same group back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from xmp._inside.frameworks import _exchange, _trees
from xmp._inside.frameworks._meeting_places import wait_for_listener
from xmp._inside.frameworks._reduce import fold, is_array, is_number
from xmp._inside.frameworks._torch_groups import refuse_backend
from xmp._os.imports import imported
from xmp._words.replica_info import ReplicaInfo

from ._wire import PaddleWire, as_numpy

__all__ = ["Paddle", "attach", "enter"]

_OPS = {"sum": "SUM", "mean": "SUM", "min": "MIN", "max": "MAX", "prod": "PROD"}
_REDUCED = ("float32", "float64", "int32", "int64")
_FLAG = "FLAGS_selected_gpus"


def enter(info: ReplicaInfo) -> Paddle:
    """Choose the device, and join the other trainers if there are any.

    Raises:
        RuntimeError: Paddle is not installed or cannot be imported.
    """
    paddle = _module()
    if _FLAG in os.environ:  # Paddle parses flags when it is imported, perhaps in the template
        paddle.set_flags({_FLAG: os.environ[_FLAG]})
    paddle.set_device(info.device)
    framework = Paddle(info)
    if info.world_size > 1:
        _join(paddle, info)
        framework.barrier()  # rank 0 hosts the store, through which others may still be connecting
    return framework


def attach(info: ReplicaInfo) -> Paddle:
    """Return the collectives for a process that another launcher started; change nothing in it."""
    return Paddle(info)


def _module() -> Any:
    try:
        paddle = imported("paddle")
        imported("paddle.distributed")
    except ImportError as error:
        raise RuntimeError(
            f"the replica needs Paddle, which cannot be imported ({error}); install it "
            "(pip install paddlepaddle)"
        ) from error
    return paddle


def _join(paddle: Any, info: ReplicaInfo) -> None:
    first = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0]
    if info.rank != 0:
        wait_for_listener(first)  # Paddle's own client retries only after 3 s
    paddle.distributed.init_parallel_env()


class Paddle:
    """A replica's view of the trainers; see ``xmp._words.framework.Framework``.

    Paddle tensors come back as Paddle tensors that stop gradients, numpy arrays as numpy arrays.
    """

    def __init__(self, info: ReplicaInfo) -> None:
        self._info = info
        self._wire = PaddleWire(info.rank, info.world_size)

    def device(self) -> Any:
        """Return Paddle's place: ``Place(cpu)``, ``Place(gpu:0)``."""
        return _module().framework._current_expected_place()

    def synchronize(self) -> None:
        """Wait until this replica's device has done all that was given to it."""
        paddle = _module()
        if not paddle.device.get_device().startswith("cpu"):
            paddle.device.synchronize()

    def init_process_group(self, backend: str | None = None, timeout: float | None = None) -> None:
        """Do nothing: ``enter`` has joined the trainers."""
        refuse_backend(backend, "paddle")

    def barrier(self) -> None:
        """Wait until every replica has called this."""
        self.all_gather(None)

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce tensors, arrays and numbers in ``value``; shapes must be equal on all replicas."""
        leaves = _trees.leaves(value)
        rest = []
        for index, leaf in enumerate(leaves):
            if _fits(leaf):
                leaves[index] = self._reduced(leaf, op)
            elif _is_numeric(leaf):
                rest.append(index)
        if rest:
            gathered = self.all_gather([_as_numpy(leaves[index]) for index in rest])
            for index, column in zip(rest, zip(*gathered)):
                leaves[index] = _like(fold(column, op), leaves[index])
        return _trees.rebuild(value, leaves)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Return the value of rank ``src``, any picklable object; ``src`` gets the same object."""
        return _exchange.broadcast(value, src, self._wire)

    def all_gather(self, value: Any) -> Sequence[Any]:
        """Return the values of all replicas, in rank order; shapes may differ."""
        return _exchange.all_gather(value, self._wire)

    def leave(self) -> None:
        """Destroy the process group."""
        if self._info.world_size > 1:
            _module().distributed.destroy_process_group()

    def _reduced(self, leaf: Any, op: str) -> Any:
        paddle = _module()
        buffer = paddle.to_tensor(leaf).detach().clone()
        dist = paddle.distributed
        dist.all_reduce(buffer, op=getattr(dist.ReduceOp, _OPS[op]))
        if op == "mean":
            buffer = buffer / self._info.world_size  # integers become floats
        return buffer.numpy() if is_array(leaf) else buffer


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, _module().Tensor)


def _is_numeric(leaf: Any) -> bool:
    return is_number(leaf) or is_array(leaf) or _is_tensor(leaf)


def _fits(leaf: Any) -> bool:
    """Return whether gloo and nccl reduce this type themselves."""
    if is_array(leaf):
        return bool(leaf.dtype.isnative and leaf.dtype.name in _REDUCED and leaf.shape)
    return _is_tensor(leaf) and str(leaf.dtype).removeprefix("paddle.") in _REDUCED


def _as_numpy(leaf: Any) -> Any:
    return as_numpy(leaf) if _is_tensor(leaf) else leaf


def _like(result: Any, leaf: Any) -> Any:
    """Return the result in the form of ``leaf``; the mean of integers stays a float."""
    if not _is_tensor(leaf):
        return result
    tensor = _module().to_tensor(result)
    return tensor.astype(leaf.dtype) if leaf.is_floating_point() else tensor
