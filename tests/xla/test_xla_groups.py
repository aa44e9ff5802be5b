"""Process groups, ``launcher`` and ``replica()`` on torch_xla: over gloo, and on its mesh."""

from __future__ import annotations

from typing import Any

import pytest

import xmp
from tests.xla.test_xla_threads import two_on_the_cpu

pytestmark = pytest.mark.xla

__all__ = ["two_on_the_cpu"]  # an automatic fixture: a process with two devices of the CPU


def over_gloo(base: int) -> Any:
    import torch
    import torch.distributed as dist

    xmp.init_process_group("gloo")
    group = dist.new_group([0, 1])
    x = torch.full((2,), float(base + xmp.rank()), device=xmp.device())
    replica = xmp.replica()
    return {
        "group": dist.get_backend(),
        "place": (xmp.rank(group), xmp.world_size(group), xmp.rank(xmp.local_group())),
        "sum": xmp.all_reduce(x, group=group).tolist(),
        "all": [each.tolist() for each in xmp.all_gather(x, group)],
        "sent": xmp.broadcast(x, 1, group).tolist(),
        "ordinal": (replica.device_ordinal, replica.device_type),
    }


def test_groups_over_gloo_hold_xla_tensors() -> None:
    found = xmp.launcher(over_gloo, nprocs=2, runtime="pjrt", backend="gloo")(10)
    for rank, each in enumerate(found):
        assert each == {
            "group": "gloo",
            "place": (rank, 2, rank),
            "sum": [21.0, 21.0],
            "all": [[10.0, 10.0], [11.0, 11.0]],
            "sent": [11.0, 11.0],
            "ordinal": (rank, "cpu"),
        }


def alone() -> Any:
    import torch.distributed as dist

    return dist.get_backend(), dist.get_world_size(), xmp.replica().device_ordinal


def test_a_replica_alone_has_a_group_of_one() -> None:
    launched = xmp.launcher(alone, nprocs=1, runtime="pjrt", start_method="forkserver")
    assert launched() == [("xla", 1, 0)]


def on_the_mesh() -> Any:
    import torch_xla.runtime as xr

    texts = []
    for call in (xmp.local_group, lambda: xmp.rank("any"), lambda: xmp.all_gather(1, "any")):
        with pytest.raises(RuntimeError) as caught:
            call()
        texts.append(str(caught.value))
    return xmp.rank(), xmp.replica().device_ordinal == xr.global_ordinal(), texts


def test_on_the_mesh_the_ordinal_is_the_runtimes_and_groups_are_refused_by_name() -> None:
    found = xmp.launcher(on_the_mesh, nprocs=2, runtime="two_on_the_cpu")()
    assert [each[:2] for each in found] == [(0, True), (1, True)]
    for *_, texts in found:
        assert all("runtime 'two_on_the_cpu' has no groups of some" in each for each in texts)
