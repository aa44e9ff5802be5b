"""The wire of ``_exchange`` over Paddle's collectives (3.3), which must be ready.

It does not use Paddle's collectives of objects, which unpickle whatever has reached the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xmp._inside.frameworks._exchange import ArrayWire, BlockHeads

__all__ = ["PaddleWire", "as_numpy", "in_numpy"]


class PaddleWire(ArrayWire, BlockHeads):
    """See ``_exchange.Wire``."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.makers = (_tensor,)

    def reduce(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Have tensors travel as numpy arrays; return None for other values."""
        import paddle

        if not isinstance(value, paddle.Tensor):
            return None
        return _tensor, (as_numpy(value), _dtype_name(value))

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        """Return the parts of all ranks, which travel padded to the longest."""
        import paddle

        longest = max(sizes)
        columns: list[Any] = []
        if longest:
            paddle.distributed.all_gather(columns, _padded(part, longest))
        mine = [column.numpy() for column in columns] or [_empty(0) for _ in sizes]
        return [column[:size].copy() for column, size in zip(mine, sizes)]

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        """Return the part of ``src``."""
        import paddle

        moved = _padded(part, size)
        if size:
            paddle.distributed.broadcast(moved, src=src)
        return moved.numpy().copy()

    def _gather(self, data: bytes, size: int) -> list[bytes]:
        columns = self.gather_part(self.part(memoryview(data)), [size] * self.size)
        return [column.tobytes() for column in columns]

    def _broadcast(self, data: bytes | None, size: int, src: int) -> bytes:
        part = None if data is None else self.part(memoryview(data))
        received: bytes = self.broadcast_part(part, size, src).tobytes()
        return received


def as_numpy(tensor: Any) -> Any:
    """Return the values of a tensor, in the dtype that ``in_numpy`` names."""
    name = _dtype_name(tensor)
    there = in_numpy(name)
    return (tensor if there == name else tensor.astype(there)).detach().numpy()


def in_numpy(dtype: str) -> str:
    """Return the dtype in which numpy holds all values of a tensor of Paddle's ``dtype``.

    Floats shorter than float32 become float32: numpy has no bfloat16, for which Paddle would give
    its bits as integers, and no float8.
    """
    return "float32" if dtype.startswith(("bfloat16", "float16", "float8")) else dtype


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("paddle.")


def _empty(size: int) -> Any:
    import numpy

    return numpy.zeros(size, numpy.uint8)


def _padded(part: Any | None, size: int) -> Any:
    """Return the part as a tensor of ``size`` bytes, zeros where the part ends or is None."""
    import paddle

    block = _empty(size)
    if part is not None:
        block[: len(part)] = part
    return paddle.to_tensor(block)


def _tensor(array: Any, dtype: str) -> Any:
    import paddle

    return paddle.to_tensor(array, dtype=dtype)
