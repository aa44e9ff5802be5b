"""The XLA mesh's wire where the runtime's ordinals are not the planned ranks.

That happens on TPU alone, so the mesh is a stand-in here; tests/xla calls torch_xla's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from xmp._inside.frameworks import _exchange
from xmp._inside.frameworks._xla_wire import MeshWire
from xmp._words.replica_info import ReplicaInfo

ORDINALS = (2, 0, 3, 1)  # of the ranks 0 to 3


class Mesh:
    """Threads that meet; what they bring lies by ordinal, as in ``xla_model``."""

    def __init__(self, size: int) -> None:
        self._there = threading.Barrier(size)
        self._brought: list[Any] = [None] * size

    def exchange(self, ordinal: int, value: Any) -> list[Any]:
        self._brought[ordinal] = value
        self._there.wait(10)
        found = list(self._brought)
        self._there.wait(10)
        return found


class XlaModel:
    """``all_gather`` and ``collective_broadcast`` of ``torch_xla.core.xla_model``."""

    def __init__(self, mesh: Mesh, ordinal: int) -> None:
        self._mesh = mesh
        self._ordinal = ordinal

    def all_gather(self, value: Any) -> Any:
        import torch

        return torch.cat(self._mesh.exchange(self._ordinal, value))

    def collective_broadcast(self, tensors: list[Any], root_ordinal: int = 0) -> None:
        for tensor in tensors:
            tensor.copy_(self._mesh.exchange(self._ordinal, tensor.clone())[root_ordinal])


def on_every_rank(act: Callable[[MeshWire], Any]) -> list[Any]:
    import torch

    mesh, size = Mesh(len(ORDINALS)), len(ORDINALS)

    def run(rank: int) -> Any:
        model = XlaModel(mesh, ORDINALS[rank])
        info = ReplicaInfo(rank, rank, size, size)
        return act(MeshWire(torch, model, info, lambda: torch.device("cpu")))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def test_what_is_gathered_comes_in_rank_order() -> None:
    def act(wire: MeshWire) -> Any:
        return _exchange.all_gather((wire.rank, "x" * 3000 * wire.rank, b"y" * wire.rank), wire)

    expected = [(rank, "x" * 3000 * rank, b"y" * rank) for rank in range(4)]
    assert on_every_rank(act) == [expected] * 4


@pytest.mark.parametrize("src", range(4))
def test_a_rank_sends_its_own(src: int) -> None:
    import torch

    def act(wire: MeshWire) -> Any:
        tensor = torch.full((2000,), float(wire.rank))
        rank, sent = _exchange.broadcast((wire.rank, tensor), src, wire)
        return rank, sent.shape, sent.unique().tolist()

    assert on_every_rank(act) == [(src, (2000,), [float(src)])] * 4
