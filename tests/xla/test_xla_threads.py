"""torch_xla with several devices in one process: each replica is a thread, all are one mesh.

TPU v2 and v3 do this; here a runtime of the tests gives a process two devices of the CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.frameworks import OPS
from tests.support.frameworks import replicas as any_replicas
from xmp._plan import runtimes
from xmp._plan.runtimes.pjrt import Pjrt
from xmp._words.types import HostFacts, Request

pytestmark = pytest.mark.xla

replicas = partial(any_replicas, runtime="two_on_the_cpu")
ROOT = Path(__file__).parent.parent.parent


class TwoOnTheCpu(Pjrt):
    """What v2 and v3 have, on the CPU: a process with two devices."""

    name = "two_on_the_cpu"

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> runtimes.Fit:
        return runtimes.Fit(2, (2,), "2 devices of the CPU")

    def share(self, job: runtimes.Job, place: runtimes.Place, local: int) -> runtimes.Share:
        one = super().share(job, place, local)
        given = {**one.set, "CPU_NUM_DEVICES": "2"}
        given |= {"PJRT_LOCAL_PROCESS_RANK": "0", "PJRT_LOCAL_PROCESS_COUNT": "1"}
        settings = {**one.settings, "threads_per_process": "2"}
        return runtimes.Share(given, f"cpu:{local}", settings, 0)


@pytest.fixture(autouse=True)
def two_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    runtimes.register(TwoOnTheCpu())
    yield
    runtimes.unregister("two_on_the_cpu")


def reduced(rank: int) -> dict[str, Any]:
    import torch

    tensor = torch.arange(3.0, device=xmp.device()) + rank
    tensor.cpu()
    found = {}
    for op in OPS:
        each = in_turn(lambda op=op: xmp.all_reduce({"x": tensor, "w": "same"}, op))
        found[op] = [each["x"].tolist(), each["w"]]
    return {
        "place": [os.getpid(), xmp.rank(), str(xmp.device())],
        "once": xmp.once_per_host(lambda: f"made by {rank}"),
        "reduced": found,
        "kept": tensor.tolist(),
    }


def in_turn(make: Callable[[], Any]) -> Any:
    """Compile in one thread after the other, then meet.

    XLA's CPU client joins the participants of one compiled module, and the second thread has the
    same module only if it finds it in torch_xla's cache. (A TPU needs no such care.)
    """
    import torch_xla

    from tests.support.frameworks import LOCK  # here: a lock cannot be sent with the function

    with LOCK:
        made = make()
        torch_xla.sync(wait=False)
    return made


def test_two_threads_are_one_mesh() -> None:
    found = replicas(reduced, nprocs=2)
    for rank, each in enumerate(found):
        assert each["place"] == [found[0]["place"][0], rank, f"xla:{rank}"]
        assert each["once"] == "made by 0"
        assert each["kept"] == [rank, rank + 1.0, rank + 2.0]
        assert each["reduced"] == {
            "sum": [[1.0, 3.0, 5.0], "same"],
            "mean": [[0.5, 1.5, 2.5], "same"],
            "min": [[0.0, 1.0, 2.0], "same"],
            "max": [[1.0, 2.0, 3.0], "same"],
            "prod": [[0.0, 2.0, 6.0], "same"],
        }


def step(rank: int) -> list[float]:
    """One step of xla_model's own optimizer_step, each replica with its part of the batch."""
    import torch
    import torch_xla.core.xla_model as xm

    device = xmp.device()
    model = torch.nn.Linear(4, 1)
    model.weight.data, model.bias.data = torch.linspace(-1, 1, 4).reshape(1, 4), torch.zeros(1)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(64.0).reshape(16, 4).sin()
    mine = x[rank :: xmp.world_size()].to(device)

    def train() -> None:
        ((model(mine) - mine.sum(1, keepdim=True)) ** 2).mean().backward()
        xm.optimizer_step(optimizer)

    in_turn(train)
    return [*model.weight.cpu().flatten().tolist(), *model.bias.cpu().tolist()]


def test_a_training_step_is_that_of_the_whole_batch() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    model.weight.data, model.bias.data = torch.linspace(-1, 1, 4).reshape(1, 4), torch.zeros(1)
    x = torch.arange(64.0).reshape(16, 4).sin()
    ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
    with torch.no_grad():
        whole = [v for p in model.parameters() for v in (p - 0.1 * p.grad).flatten().tolist()]
    found = replicas(step, nprocs=2)
    assert found == [pytest.approx(whole, rel=1e-4, abs=1e-6)] * 2


def group(rank: int) -> None:
    xmp.init_process_group()


def test_threads_cannot_form_a_process_group() -> None:
    with pytest.raises(xmp.ReplicaRaised, match="threads of one process"):
        replicas(group, nprocs=2)


def places() -> Any:
    import torch_xla.runtime as xr

    texts = []
    for call in (xmp.local_group, lambda: xmp.rank("any"), lambda: xmp.all_gather(1, "any")):
        with pytest.raises(RuntimeError) as caught:
            call()
        texts.append(str(caught.value))
    return xmp.rank(), xmp.replica().device_ordinal == xr.global_ordinal(), texts


def test_on_the_mesh_the_ordinal_is_the_runtimes_and_groups_are_refused_by_name() -> None:
    found = xmp.launcher(places, nprocs=2, runtime="two_on_the_cpu")()
    assert [each[:2] for each in found] == [(0, True), (1, True)]
    for *_, texts in found:
        assert all("runtime 'two_on_the_cpu' has no groups of some" in each for each in texts)


def failing(rank: int) -> None:
    import torch

    if rank == 1:
        raise ValueError("one it was")
    xmp.all_reduce(torch.ones(2, device=xmp.device())).tolist()


def test_the_thread_that_failed_is_named() -> None:
    with pytest.raises(xmp.ReplicaRaised, match=r"^rank 1 of 2 \(cpu:1, .*one it was"):
        replicas(failing, nprocs=2, grace=1.0)


def seen(rank: int) -> list[Any]:
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    numbers = [xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xr.process_count()]
    count = torch_xla._XLAC._xla_get_replication_devices_count()
    return [rank, *numbers, xr.addressable_device_count(), count, str(xm.xla_device())]


THEIRS = """
import json, os
from torch_xla.distributed import xla_multiprocessing
from tests.xla.test_xla_threads import seen
def fn(rank):
    os.write(1, (json.dumps(seen(rank)) + "\\n").encode())
xla_multiprocessing.spawn(fn, start_method="fork")
"""


def test_threads_find_what_torch_xlas_own_spawn_sets_up() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", THEIRS],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CPU_NUM_DEVICES": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = sorted(json.loads(line) for line in done.stdout.splitlines())
    assert len(theirs) == 2
    assert replicas(seen, nprocs=2) == theirs


def test_devices_of_the_cpu_that_could_not_meet_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    made = xmp.plan(runtime="pjrt")
    assert (made.world_size, dict(made.hosts[0].replicas[0].set)["CPU_NUM_DEVICES"]) == (1, "1")
    assert any("CPU_NUM_DEVICES=4 is replaced" in note for note in made.notes)
