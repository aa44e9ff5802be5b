"""``xmp.compat.megengine``: programs of MegEngine's documentation with another import.

They are those of MegEngine/Documentation, source/user-guide/model-development/distributed, with
torch in the function.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

import xmp
import xmp.compat.megengine as dist
from tests.support.launching import nothing_started
from tests.support.stage import Stage
from tests.support.waiting import until

# --- programs of the documentation ---------------------------------------------------------------

TRAINS = """
import math
import torch
import in_script
import xmp
import xmp.compat.megengine as dist

torch.manual_seed(0)
DATA, LABELS = torch.randn(30, 8, dtype=torch.float64), torch.arange(30) % 4

def train(rank, world):
    size = math.ceil(len(DATA) / world)
    left, right = size * rank, min(size * (rank + 1), len(DATA))
    model = torch.nn.Linear(8, 4, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(xmp.broadcast(parameter.detach()))
    losses = []
    for epoch in range(3):
        model.zero_grad()
        predicted = model(DATA[left:right])
        loss = torch.nn.functional.cross_entropy(predicted, LABELS[left:right], reduction="sum")
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = xmp.all_reduce(parameter.grad) / len(DATA)
            parameter.data -= 0.1 * parameter.grad  # torch.optim would import torch._dynamo
        losses.append(xmp.all_reduce(loss.item()) / len(DATA))
        if rank == 0:
            print(f"epoch = {epoch}, loss = {losses[-1]:.3f}", flush=True)
    return losses

@dist.launcher
def main():
    torch.manual_seed(xmp.rank())
    return train(xmp.rank(), xmp.world_size())

results = main()
torch.manual_seed(0)
in_script.say(results=results, alone=train(0, 1), devices=xmp.default_nprocs())
"""


def test_the_training_on_every_device_is_that_of_one_process(stage: Stage) -> None:
    """As in the documentation it has no ``if __name__ == "__main__"``."""
    done = stage.outcome(stage.start(TRAINS), 120)
    assert done.code == 0, done.err
    losses = done.said["alone"]
    assert losses[2] < losses[0]
    assert len(done.said["results"]) == done.said["devices"]
    for each in done.said["results"]:
        assert each == pytest.approx(losses, abs=1e-12)
    assert done.out.count("epoch = 0, loss = ") == 2  # by rank 0, and by the process alone


@dist.launcher(n_gpus=2)
def pipeline(weight: float) -> Any:
    import torch
    import torch.distributed

    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(weight)
    passed, gradient = torch.zeros(1), torch.zeros(1)
    if xmp.rank() == 0:
        features = layer(torch.tensor([3.0]))
        torch.distributed.send(features.detach(), 1)
        torch.distributed.recv(gradient, 1)
        features.backward(gradient)
    else:
        torch.distributed.recv(passed, 0)
        layer(passed.requires_grad_()).backward()
        assert passed.grad is not None
        torch.distributed.send(passed.grad, 0)
    assert layer.weight.grad is not None
    return layer.weight.grad.item()


def test_a_pipeline_of_two() -> None:
    assert pipeline(2.0) == [6.0, 6.0]


HOSTS = """
    import sys
    import in_script, xmp
    import xmp.compat.megengine as dist

    n_gpus, rank_start, port = map(int, sys.argv[1:])

    @dist.launcher(
        world_size=2 * n_gpus, n_gpus=n_gpus, rank_start=rank_start, master_ip="127.0.0.2",
        port=port,
    )
    def main(depth):
        if depth:
            return main(depth - 1)
        total = xmp.all_reduce(float(xmp.rank()))
        return xmp.rank(), xmp.host_index(), float(total)

    if __name__ == "__main__":
        in_script.say(first=main(0), second=main(1))
"""


@pytest.mark.parametrize(("runtime", "n_gpus", "file"), [("cpu", 2, True), ("jax", 1, False)])
def test_other_hosts_come_to_the_port_that_the_first_one_shows(
    stage: Stage, runtime: str, n_gpus: int, file: bool
) -> None:
    """It is the same in the second launch; without a file the function travels by value."""

    def host(start: int, port: str) -> Any:
        variables = {"XMP_RUNTIME": runtime}
        return stage.start(HOSTS, str(n_gpus), str(start), port, env=variables, file=file)

    first = host(0, "0")
    shown = stage.folder / f"{first.script.name}.err"
    until(lambda: "port=" in shown.read_text() and shown.read_text().endswith("\n"), 120)
    found = re.search(
        r"xmp: rank 0 is at 127.0.0.2: give the other hosts port=(\d+)\n", shown.read_text()
    )
    assert found is not None
    hosts = [first, host(n_gpus, found[1])]
    total = float(sum(range(2 * n_gpus)))
    for index, process in enumerate(hosts):
        outcome = stage.outcome(process, 120)
        assert outcome.code == 0, outcome.err
        results = [[index * n_gpus + i, index, total] for i in range(n_gpus)]
        assert outcome.said == {"first": results, "second": results}
        assert outcome.err.count("port=") == (index == 0)
    stage.gone()


# --- results, and how it ends --------------------------------------------------------------------


@dist.launcher(n_gpus=2)
def worker(size: int, how: str = "") -> Any:
    if how == "exit":
        raise SystemExit(0)
    if how == "raise" and xmp.rank() == 1:
        raise ValueError("no data")
    return [xmp.rank()] * size


def test_results_are_a_list_by_local_rank() -> None:
    assert worker(10_000) == [[0] * 10_000, [1] * 10_000]


@pytest.mark.failing
def test_who_exits_without_returning_is_warned_about(capfd: pytest.CaptureFixture[str]) -> None:
    assert worker(10, how="exit") == [None, None]
    said = capfd.readouterr().err
    for rank in (0, 1):
        assert f"rank {rank}: sys.exit(0) before the return; its result is None" in said


@pytest.mark.failing
def test_a_failure_is_xmps_error() -> None:
    with pytest.raises(xmp.ReplicaRaised, match="no data") as caught:
        worker(1, "raise")
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, ValueError)
    assert "compat/megengine.py" not in str(caught.value)


def plain(x: Any) -> Any:
    return xmp.rank(), x, os.getpid()


def test_one_replica_has_a_process_of_its_own() -> None:
    """As in MegEngine, whose launcher never calls the function itself."""
    launched = dist.launcher(plain, 1, device_type="cpu", backend="gloo")
    [(rank, x, pid)] = launched("x")
    assert (rank, x) == (0, "x")
    assert pid != os.getpid()


def test_a_world_that_is_this_host_needs_neither_address_nor_port() -> None:
    launched = dist.launcher(n_gpus=2, world_size=2, backend="auto")(plain)
    assert [each[:2] for each in launched(x=1)] == [(0, 1), (1, 1)]


# --- the face ------------------------------------------------------------------------------------


def test_the_signature_is_megengines() -> None:
    found = inspect.signature(dist.launcher).parameters
    assert [(p.name, p.default) for p in found.values()] == [
        ("func", None),  # needed there, but `launcher(n_gpus=2)` has none
        ("n_gpus", None),
        ("world_size", None),
        ("rank_start", 0),
        ("master_ip", "localhost"),
        ("port", 0),
        ("device_type", "xpu"),
        ("backend", "nccl"),
    ]


def test_its_page_has_the_table_of_the_other_names() -> None:
    table = (dist.__doc__ or "").split("=" * 46)[2].replace("``", "`")
    ours = [re.split(" {2,}", row.strip()) for row in table.strip("=\n ").splitlines()]
    page = Path(__file__).parents[2].joinpath("docs/coming-from/megengine.md").read_text()
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| `")]
    assert rows == ours
    assert ["`WORLD`", "nothing: omit it, the collectives are of all"] in rows


def test_other_names_of_megengines_say_where_to_look() -> None:
    with pytest.raises(AttributeError, match=r"'get_rank': help\(xmp.compat.megengine\) shows"):
        dist.get_rank()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n_gpus": 0}, r"n_gpus=0: give a number from 1 up, or None"),
        ({"world_size": 0}, r"world_size=0: give a number from 1 up"),
        ({"rank_start": -1}, r"rank_start=-1: give a whole number from 0 up"),
        ({"rank_start": 2, "port": 3}, r"rank_start=2 without world_size"),
        (
            {"rank_start": 2, "world_size": 4, "master_ip": "10.0.0.2"},
            r"you have to assign a port .* has shown",
        ),
        ({"port": 70_000}, r"port=70000: give a number from 1 to 65535, or 0"),
        (
            {"n_gpus": 2, "world_size": 4},
            r"world_size=4 with 2 replicas on each host is 2 hosts, but master_ip='localhost'",
        ),
        (
            {"n_gpus": 1, "world_size": 4},
            r"world_size=4 with 1 replica on each host is 4 hosts, but",
        ),
        ({"n_gpus": 2, "world_size": 4, "master_ip": ""}, r"master_ip='' is each host itself"),
        ({"n_gpus": 3, "world_size": 4, "master_ip": "10.0.0.2"}, r"multiples of 3.*n_gpus= chang"),
        ({"device_type": "atlas"}, r"device_type='atlas': .* 'xpu', 'gpu', 'cuda', 'rocm', 'cpu'"),
        ({"backend": "cncl"}, r"backend='cncl' is of Cambricon: .*'nccl', 'auto', 'rccl', 'gloo'"),
        ({"backend": "ucx"}, r"backend='ucx' is of MegRay"),
        ({"backend": "mpi"}, r"backend='mpi': xmp has no equal"),
        ({"backend": "rccl", "device_type": "gpu"}, r"'rccl' is for AMD's GPUs"),
    ],
)
def test_what_cannot_fit_is_refused_when_it_decorates(options: dict[str, Any], says: str) -> None:
    with pytest.raises(xmp.PlanError, match=says):
        dist.launcher(**options)


@pytest.mark.parametrize(
    "options", [{"port": "1"}, {"n_gpus": 2.5}, {"rank_start": None}, {"master_ip": 1}, {"gpus": 1}]
)
def test_wrong_types_and_names(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(options))):
        dist.launcher(**options)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"device_type": "gpu"}, xmp.PlanError, r"runtime 'cuda' may use. Use device_type=\"cpu\""),
        ({"backend": "rccl"}, xmp.PlanError, r"no GPU that runtime 'rocm' may use"),
        ({"n_gpus": 10**6}, xmp.PlanError, r"n_gpus=1000000"),
        ({"world_size": 10**6 + 1}, xmp.PlanError, r"n_gpus= changes the number on each host"),
        (
            {"n_gpus": 2, "world_size": 4, "master_ip": "192.0.2.1"},
            xmp.PortError,
            r"192.0.2.1 for 'master_ip' .* does not have that address",
        ),
    ],
)
def test_what_does_not_fit_this_host_is_refused_when_it_is_called(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    launched = dist.launcher(plain, **options)
    with nothing_started(), pytest.raises(error, match=says):
        launched(1)


def test_arguments_are_checked_before_a_port_is_chosen(capfd: pytest.CaptureFixture[str]) -> None:
    launched: Any = dist.launcher(plain, n_gpus=2, world_size=4, master_ip="127.0.0.2")
    with pytest.raises(TypeError, match=r"plain\(x\): missing a required argument: 'x'"):
        launched()
    assert "port=" not in capfd.readouterr().err
