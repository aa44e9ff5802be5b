"""Paddle 3.3 itself in real replicas, on the CPU over gloo."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import xmp
from tests.support.frameworks import OPS
from tests.support.frameworks import replicas as any_replicas
from tests.support.launching import METHODS

pytestmark = pytest.mark.paddle

replicas = partial(any_replicas, runtime="paddle")


def paddles_own_program(rank: int) -> list[Any]:
    """As in Paddle's documentation of ``spawn``: the function joins by itself."""
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    value = paddle.to_tensor([1.0 + rank, 2.0])
    dist.all_reduce(value)
    return [dist.get_rank(), dist.get_world_size(), value.numpy().tolist(), str(value.place)]


@pytest.mark.parametrize("method", METHODS)
def test_a_program_of_paddle_runs_as_it_is(method: str) -> None:
    found = replicas(paddles_own_program, nprocs=2, start_method=method)
    assert found == [[rank, 2, [3.0, 4.0], "Place(cpu)"] for rank in (0, 1)]


def training_step(rank: int, world: int) -> list[float]:
    """Gradients of one batch, of which each replica has a part."""
    import numpy as np
    import paddle

    paddle.seed(0)
    model = paddle.nn.Linear(4, 1)
    data = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    x = paddle.to_tensor(data[rank::world])
    paddle.mean((model(x) - x.sum(1, keepdim=True)) ** 2).backward()
    grads = xmp.all_reduce([p.grad for p in model.parameters()], "mean")
    return [float(value) for grad in grads for value in grad.flatten().tolist()]


def test_averaged_gradients_are_those_of_the_whole_batch() -> None:
    [whole] = replicas(training_step, 1, nprocs=1)
    first, second = replicas(training_step, 2, nprocs=2)
    assert first == second == pytest.approx(whole, rel=1e-4)


def collectives(rank: int) -> dict[str, Any]:
    import numpy as np
    import paddle

    tensor = paddle.arange(3, dtype="float32") + rank
    half = paddle.full([2], 1.5 + rank, dtype="bfloat16")
    tree = {"p": tensor, "n": np.arange(2, dtype="int16") + rank, "x": rank + 1, "w": "same"}
    reduced = {op: xmp.all_reduce(tree, op) for op in OPS}
    xmp.barrier()
    gathered = xmp.all_gather((rank, paddle.ones([rank + 1]), "y" * 9000 * rank))
    return {
        "reduced": {
            op: [each["p"].tolist(), each["n"].tolist(), each["x"], each["w"]]
            for op, each in reduced.items()
        },
        "half": [str(half.dtype), xmp.all_reduce(half).astype("float32").tolist()],
        "integers": xmp.all_reduce(paddle.to_tensor([rank, 3]), "mean").tolist(),
        "gathered": [(i, t.tolist(), len(text)) for i, t, text in gathered],
        "sent": [
            (r, t.tolist()) for r, t in (xmp.broadcast((rank, tensor), src) for src in (0, 1))
        ],
        "kept": tensor.tolist(),
    }


def test_collectives() -> None:
    for rank, each in enumerate(replicas(collectives, nprocs=2)):
        assert each["reduced"] == {
            "sum": [[1.0, 3.0, 5.0], [1, 3], 3, "same"],
            "mean": [[0.5, 1.5, 2.5], [0.5, 1.5], 1.5, "same"],
            "min": [[0.0, 1.0, 2.0], [0, 1], 1, "same"],
            "max": [[1.0, 2.0, 3.0], [1, 2], 2, "same"],
            "prod": [[0.0, 2.0, 6.0], [0, 2], 2, "same"],
        }
        assert each["half"] == ["paddle.bfloat16", [4.0, 4.0]]
        assert each["integers"] == [0.5, 3.0]
        assert each["gathered"] == [(0, [1.0], 0), (1, [1.0, 1.0], 9000)]
        assert each["sent"] == [(0, [0.0, 1.0, 2.0]), (1, [1.0, 2.0, 3.0])]
        assert each["kept"] == [rank, rank + 1.0, rank + 2.0]


def precise(rank: int) -> dict[str, Any]:
    import paddle

    third = paddle.to_tensor([1 / 3 + rank], dtype="float64")
    gathered = [*xmp.all_gather(third), xmp.broadcast(third, 1)]
    short = paddle.to_tensor([1 / 3 + rank]).astype("bfloat16")
    there = xmp.all_gather(short)[rank]
    return {
        "dtypes": [str(each.dtype) for each in (*gathered, there)],
        "values": [each.item() for each in gathered],
        "short": there.astype("float32").item() == short.astype("float32").item(),
    }


def test_values_arrive_as_precise_as_they_were() -> None:
    for each in replicas(precise, nprocs=2):
        assert each["dtypes"] == [*["paddle.float64"] * 3, "paddle.bfloat16"]
        assert each["values"] == [1 / 3, 1 / 3 + 1, 1 / 3 + 1]
        assert each["short"]


def among_trainers() -> Any:
    import os

    import paddle.distributed as dist

    xmp.init_process_group("auto", timeout=60)
    texts = []
    for call in (lambda: xmp.init_process_group("gloo"), lambda: xmp.barrier("any")):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        texts.append(str(caught.value))
    replica, own = xmp.replica(), dist.ParallelEnv()
    same = (
        (replica.endpoint, list(replica.endpoints)) == (own.current_endpoint, own.trainer_endpoints)
        and replica.device_type == "cpu"
        and ",".join(replica.endpoints) == os.environ["PADDLE_TRAINER_ENDPOINTS"]
    )
    return xmp.rank(), same, texts


def test_launcher_and_the_endpoints_that_paddle_itself_says() -> None:
    found = xmp.launcher(among_trainers, nprocs=2, runtime="paddle")()
    assert [each[:2] for each in found] == [(0, True), (1, True)]
    for *_, texts in found:
        assert "runtime 'paddle' connects the replicas itself" in texts[0]
        assert "runtime 'paddle' has no groups of some replicas" in texts[1]
