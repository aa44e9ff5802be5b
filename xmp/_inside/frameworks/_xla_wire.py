"""Sends objects between replicas that hold XLA tensors: over gloo, or over the XLA mesh.

The mesh counts by the runtime's own ordinals, which need not be the planned ranks (torch_xla 2.9,
``runtime.global_ordinal``): gathered values are put into rank order here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xmp._inside import launch_key
from xmp._words.replica_info import ReplicaInfo

from ._seal import Seal
from ._torch_wire import TorchWire

__all__ = ["NO_GROUPS", "MeshWire", "XlaWire"]

NO_GROUPS = "data_parallel(group=…): the XLA mesh reduces over all replicas; leave group= out"


class XlaWire(TorchWire):
    """Sends through torch's process group on the CPU; XLA tensors travel as CPU tensors."""

    def keep(self, value: Any) -> tuple[Any, Any] | None:
        """Keep as ``TorchWire`` does; an XLA tensor's bytes are those of its copy on the CPU."""
        if not isinstance(value, self._torch.Tensor) or value.device.type != "xla":
            return super().keep(value)
        kept = super().keep(value.cpu())  # XLA has its own layouts: no view as bytes
        return kept and ((*kept[0][:2], "xla"), kept[1])


class MeshWire(XlaWire):
    """Sends through ``torch_xla.core.xla_model``; parts are on the CPU between two collectives."""

    def __init__(
        self, torch: Any, xla_model: Any, info: ReplicaInfo, device: Callable[[], Any]
    ) -> None:
        self._torch = torch
        self._xm = xla_model
        self._own_device = device
        self.rank = info.rank
        self.size = info.world_size
        self.seal = Seal(launch_key(), "mesh")
        self._known_ordinals: tuple[int, ...] = ()

    def device_for(self, tensor: Any) -> Any:
        """Return the replica's own device: the mesh reduces on its own devices only."""
        return self._own_device()

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        """Gather parts, padded to the longest, since XLA wants one shape on all replicas."""
        longest = max(sizes)
        if not longest:
            return [self._empty(0) for _ in sizes]
        mine = self._empty(longest)
        if part is not None:
            mine[: len(part)] = part
        rows = self._xm.all_gather(mine.to(self._own_device())).cpu().reshape(self.size, longest)
        places = zip(self._ordinals(), sizes)
        return [rows[ordinal][:size].clone() for ordinal, size in places]

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        """Broadcast from ``src``; torch_xla multiplies the values of the other ranks by zero."""
        if not size:
            return self._empty(0)
        moved = (self._empty(size) if part is None else part).to(self._own_device(), copy=True)
        self._xm.collective_broadcast([moved], root_ordinal=self._ordinals()[src])
        return moved.cpu()

    def _empty(self, size: int) -> Any:
        return self._torch.zeros(size, dtype=self._torch.uint8)

    def _ordinals(self) -> tuple[int, ...]:
        """Return the runtime's ordinal of every rank; gathered once, by all replicas together."""
        if not self._known_ordinals:
            own = self._own_device()
            mine = self._torch.tensor([self.rank], dtype=self._torch.int32, device=own)
            ranks = self._xm.all_gather(mine).cpu().tolist()
            self._known_ordinals = tuple(ranks.index(rank) for rank in range(self.size))
        return self._known_ordinals
