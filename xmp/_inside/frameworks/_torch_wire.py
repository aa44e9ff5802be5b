"""Sends the bytes of ``_exchange`` with torch's collectives.

Tensors are never pickled and stay on their kind of device; numpy arrays travel as raw memory. The
process group must exist. Ranks are those of the group.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from xmp._os.imports import loaded_framework

from ._exchange import BlockHeads
from ._seal import seal_of

__all__ = ["TorchWire", "without_jax"]


def without_jax(value: Any) -> Any:
    """Return a ``jax.Array`` as numpy array, so that no receiver has to start JAX's runtime."""
    jax = loaded_framework("jax")
    if jax is None or not isinstance(value, jax.Array):
        return value
    import numpy

    return numpy.asarray(value)


def _same(value: Any) -> Any:
    return value


class TorchWire(BlockHeads):
    """See ``_exchange.Wire``; a part is a flat uint8 tensor."""

    makers = (_same,)

    def __init__(self, torch: Any, device: Callable[[], Any], group: Any = None) -> None:
        """Send through ``group``; None for the default one."""
        self._torch = torch
        self._dist = torch.distributed
        self._own_device = device
        self._group = group
        config: str = self._dist.get_backend_config(group)
        self._kinds = [entry.split(":")[0] for entry in config.split(",")]
        self.rank: int = self._dist.get_rank(group)
        self.size: int = self._dist.get_world_size(group)
        self.seal = seal_of(self._dist.group.WORLD if group is None else group)

    def device_for(self, tensor: Any) -> Any:
        """Return a device from which the group can send: the tensor's, or one of the group's."""
        if tensor.device.type in self._kinds:
            return tensor.device
        return self._torch.device("cpu") if "cpu" in self._kinds else self._own_device()

    def keep(self, value: Any) -> tuple[Any, Any] | None:
        """Keep plain tensors as bytes; parameters travel so by the tensor within them."""
        if type(value) is not self._torch.Tensor:
            return None
        if value.layout is not self._torch.strided or value.is_quantized or value.is_meta:
            return None
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        note = (str(value.dtype).removeprefix("torch."), tuple(value.shape), value.device.type)
        return note, flat.view(self._torch.uint8)

    def restore(self, description: Any, part: Any) -> Any:
        """Restore a tensor, on this replica's own device if it was on one of that kind.

        All others come back on the CPU.
        """
        name, shape, kind = description
        dtype = getattr(self._torch, name)
        if not isinstance(dtype, self._torch.dtype):  # a stranger's, where there are no codes
            raise TypeError(f"{name!r} is no type of tensors")
        own = self._own_device()
        device = own if own.type == kind else self._torch.device("cpu")
        return part.view(dtype).reshape(shape).to(device)

    def reduce(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Reduce jax arrays to numpy arrays."""
        plain = without_jax(value)
        return None if plain is value else (_same, (plain,))

    def part(self, buffer: memoryview) -> Any:
        """Return a tensor over ``buffer``; over a copy if ``buffer`` is read-only."""
        return self._torch.frombuffer(
            bytearray(buffer) if buffer.readonly else buffer, dtype=self._torch.uint8
        )

    def buffer(self, part: Any) -> Any:
        """Return a part as numpy array, since numpy's unpickling wants a writable buffer."""
        return part.cpu().numpy()

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        """Gather parts, padded to the longest; copy a padded part without its padding."""
        longest = max(sizes)
        mine = self._empty(longest)
        if part is not None:
            mine[: len(part)] = part
        columns = [self._empty(longest) for _ in sizes]
        if longest:
            self._dist.all_gather(columns, mine, group=self._group)
        return [
            column if size == longest else column[:size].clone()
            for column, size in zip(columns, sizes)
        ]

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        """Broadcast straight from the sender's memory into new memory here."""
        moved = self._empty(size) if part is None else part.to(self.device_for(part))
        if size:
            self._dist.broadcast(moved, group=self._group, group_src=src)
        return moved

    def _empty(self, size: int) -> Any:
        kind = "cpu" if "cpu" in self._kinds else self._own_device()
        return self._torch.empty(size, dtype=self._torch.uint8, device=kind)

    def _gather(self, data: bytes, size: int) -> list[bytes]:
        part = self.part(memoryview(data)) if data else None
        return [_bytes(column) for column in self.gather_part(part, [size] * self.size)]

    def _broadcast(self, data: bytes | None, size: int, src: int) -> bytes:
        part = None if data is None else self.part(memoryview(data))
        return _bytes(self.broadcast_part(part, size, src))


def _bytes(part: Any) -> bytes:
    here = part.cpu()
    return ctypes.string_at(here.data_ptr(), len(here))  # torch may come without numpy
