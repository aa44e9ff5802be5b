"""torch_xla 2.9 itself in real replicas: PJRT on the CPU, alone and several over gloo.

On the CPU torch_xla has no mesh across processes, so ``xla_model``'s collectives are only called
in a world of one here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.frameworks import OPS
from tests.support.frameworks import replicas as any_replicas

pytestmark = pytest.mark.xla

replicas = partial(any_replicas, runtime="pjrt")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")


def training_step(rank: int, kind: str) -> list[float]:
    """Losses of a small regression, on the XLA device or by torch alone."""
    import torch

    device = xmp.device() if kind == "xla" else torch.device("cpu")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 4).to(device)
    y = x.sum(1, keepdim=True)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        if kind == "xla":
            import torch_xla
            import torch_xla.core.xla_model as xm

            xm.optimizer_step(optimizer)
            torch_xla.sync()
        else:
            optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_training_steps_are_those_of_torch_alone(method: str) -> None:
    losses = replicas(training_step, "xla", nprocs=1, start_method=method)[0]
    assert losses == pytest.approx(training_step(0, "torch"), rel=1e-4)
    assert losses[-1] < 0.1 * losses[0]


# --- replication ---------------------------------------------------------------------------------

SEEN = """
def seen():
    import os
    import torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
    bounds = [xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xr.device_type()]
    counts = [torch_xla._XLAC._xla_get_replication_devices_count(), xr.process_count()]
    names = sorted(n for n in os.environ if n.startswith(("PJRT", "TPU_", "XLA_", "TF_", "GRPC")))
    # The one name is only set by torch_xla where there are several processes.
    flags = {n: os.environ[n].split() for n in names if n != "PJRT_LOCAL_PROCESS_RANK"}
    return [*bounds, *counts, str(xm.xla_device()), flags]
"""

THEIRS = f"""{SEEN}
import json
from torch_xla.distributed import xla_multiprocessing
def fn(rank):
    print(json.dumps([rank, *seen()]))
xla_multiprocessing.spawn(fn, nprocs=1)
"""

OURS = f"""{SEEN}
import json, os, sys, warnings
import xmp
def fn(rank):
    return [rank, *seen()]
def device(rank):
    return [str(xmp.device()), str(xmp.all_reduce(xmp.rank() + 1))]
if __name__ == "__main__":
    before = dict(os.environ)
    join = sys.argv[1] == "here"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = xmp.spawn(device, nprocs=1, runtime="pjrt") if join else None
    found = {{"device": list(made or ()), "warned": [str(each.message) for each in caught]}}
    made = xmp.spawn(fn, nprocs=1, runtime="pjrt", join=join)
    found["seen"] = (made if join else made.results())[0]
    print(json.dumps(found))
    own = {{n for n in os.environ if os.environ[n] != before.get(n)}}
    assert not own, own
"""


def run(program: str, *arguments: str) -> Any:
    """What ``program`` prints last, as JSON; a separate process, since it initialises XLA."""
    env = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        capture_output=True, text=True, timeout=120, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def theirs() -> Any:
    return run(THEIRS)


@pytest.mark.parametrize("where", ["here", "in a replica"])
def test_one_replica_finds_what_torch_xlas_own_spawn_sets_up(where: str, theirs: Any) -> None:
    found = run(OURS, where)
    assert found["seen"] == theirs
    if where == "here":
        assert found["device"] == [["xla:0", "1"]]
        assert not [text for text in found["warned"] if "Use torch_xla.device" in text]


# --- several on the CPU --------------------------------------------------------------------------


def collectives(rank: int) -> dict[str, Any]:
    import torch

    device = xmp.device()
    tensor = torch.arange(3.0, device=device) + rank
    tree = {"xla": tensor, "cpu": torch.arange(2) + rank, "number": rank + 1, "word": "same"}
    reduced = {op: xmp.all_reduce(tree, op) for op in OPS}
    half = xmp.all_reduce(torch.full((2,), 60000.0, dtype=torch.float16, device=device), "mean")
    long = torch.arange(3000.0 * (rank + 1), device=device).reshape(rank + 1, -1)
    xmp.barrier()
    return {
        "devices": [str(device), *(str(reduced[op][key].device) for op in OPS for key in ("xla",))],
        "reduced": {
            op: [each["xla"].tolist(), each["cpu"].tolist(), each["number"], each["word"]]
            for op, each in reduced.items()
        },
        "half": half.tolist(),
        "gathered": [
            (i, str(each.device), list(each.shape), float(each.sum()))
            for i, each in xmp.all_gather((rank, long))
        ],
        "sent": [
            (r, t.tolist()) for r, t in (xmp.broadcast((rank, tensor), src) for src in (0, 1))
        ],
        "kept": tensor.tolist(),
    }


def test_two_replicas_meet_over_gloo() -> None:
    found = replicas(collectives, nprocs=2, backend="gloo")
    for rank, each in enumerate(found):
        assert each["devices"] == ["xla:0"] * 6
        assert each["reduced"] == {
            "sum": [[1.0, 3.0, 5.0], [1, 3], 3, "same"],
            "mean": [[0.5, 1.5, 2.5], [0.5, 1.5], 1.5, "same"],
            "min": [[0.0, 1.0, 2.0], [0, 1], 1, "same"],
            "max": [[1.0, 2.0, 3.0], [1, 2], 2, "same"],
            "prod": [[0.0, 2.0, 6.0], [0, 2], 2, "same"],
        }
        assert each["half"] == [60000.0, 60000.0]
        sums = [sum(range(3000)), sum(range(6000))]
        assert each["gathered"] == [
            (0, "xla:0", [1, 3000], pytest.approx(sums[0])),
            (1, "xla:0", [2, 3000], pytest.approx(sums[1])),
        ]
        assert each["sent"] == [(0, [0.0, 1.0, 2.0]), (1, [1.0, 2.0, 3.0])]
        assert each["kept"] == [rank, rank + 1.0, rank + 2.0]


def data_parallel_step(rank: int) -> list[float]:
    """Each replica has half of the batch; gradients are averaged through xmp."""
    import torch

    device = xmp.device()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(device)
    x = torch.randn(64, 4)
    mine = x[rank :: xmp.world_size()].to(device)
    loss = ((model(mine) - mine.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    grads = xmp.all_reduce([p.grad for p in model.parameters()], "mean")
    return [value for grad in grads for value in grad.flatten().tolist()]


def test_averaged_gradients_are_those_of_the_whole_batch() -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    x = torch.randn(64, 4)
    ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
    whole = [value for p in model.parameters() for value in p.grad.flatten().tolist()]
    first, second = replicas(data_parallel_step, nprocs=2, backend="gloo")
    assert first == second == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("backend", [None, "auto", "xla"])
def test_several_without_gloo_are_refused_before_anything_starts(backend: str | None) -> None:
    with pytest.raises(xmp.PlanError, match='nprocs=1, or backend="gloo"'):
        xmp.spawn(collectives, nprocs=2, runtime="pjrt", backend=backend)


# --- process groups ------------------------------------------------------------------------------


def group_of_xla(rank: int, how: str) -> list[Any]:
    import torch
    import torch.distributed as dist

    if how == "xmp":
        xmp.init_process_group()
    elif how == "torch_xla":
        dist.init_process_group("xla", init_method="xla://")
    tensor = torch.arange(3.0, device=xmp.device())
    dist.all_reduce(tensor)
    return [dist.get_backend(), dist.get_rank(), dist.get_world_size(), tensor.tolist()]


@pytest.mark.parametrize("how", ["xmp", "torch_xla", "backend"])
def test_a_group_of_torch_xlas_backend(how: str) -> None:
    backend = "auto" if how == "backend" else None
    [found] = replicas(group_of_xla, how, nprocs=1, backend=backend)
    assert found == ["xla", 0, 1, [0.0, 1.0, 2.0]]


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


def group_of_one() -> Any:
    import torch.distributed as dist

    return dist.get_backend(), dist.get_world_size(), xmp.replica().device_ordinal


def test_a_replica_alone_has_a_group_of_one() -> None:
    launched = xmp.launcher(group_of_one, nprocs=1, runtime="pjrt", start_method="forkserver")
    assert launched() == [("xla", 1, 0)]


def through_the_mesh(rank: int) -> list[Any]:
    """The mesh's collectives as torch_xla declares them, in the one mesh that a CPU has."""
    import torch
    import torch_xla.core.xla_model as xm

    from xmp._inside.frameworks import _exchange
    from xmp._inside.frameworks._xla_wire import MeshWire

    wire = MeshWire(torch, xm, xmp.replica(), xmp.device)
    tensor = torch.arange(3.0, device=xmp.device())
    gathered = _exchange.all_gather((tensor, "x" * 9000, b"y" * 9000), wire)
    moved = wire.broadcast_part(wire.part(memoryview(b"abc")), 3, 0)
    return [gathered[0][0].tolist(), *gathered[0][1:], bytes(moved.tolist())]


def test_the_meshs_own_collectives() -> None:
    [found] = replicas(through_the_mesh, nprocs=1)
    assert found == [[0.0, 1.0, 2.0], "x" * 9000, b"y" * 9000, b"abc"]


# --- a launcher that has used the device itself --------------------------------------------------

USED = """
import json
import torch, torch_xla
import xmp
from xmp._os import probe

def fn(rank):
    return xmp.all_reduce(torch.ones(2, device=xmp.device()) + rank).tolist()

if __name__ == "__main__":
    seen = [list(probe.facts().initialised)]
    torch.ones(2, device=torch_xla.device()).sum().item()
    seen.append(list(probe.facts().initialised))
    seen.append(list(xmp.spawn(fn, nprocs=2, runtime="pjrt", backend="gloo")))
    print(json.dumps(seen))
"""


def test_a_client_in_the_launcher_is_seen_and_does_not_disturb() -> None:
    before, used, sums = run(USED)
    assert (before, used) == ([], ["torch_xla:cpu"])
    assert sums == [[3.0, 3.0], [3.0, 3.0]]
