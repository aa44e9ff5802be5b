"""``DataParallel`` of ``xmp.compat.paddle`` and Paddle's own, in the same program."""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from typing import Any

import pytest

import xmp.compat.paddle as ours
from tests.support.frameworks import replicas as any_replicas
from tests.support.launching import nothing_started

pytestmark = pytest.mark.paddle

replicas = partial(any_replicas, runtime="paddle")


def trained(wrapper: Any, rank: int) -> dict[str, Any]:
    """Two steps: one in two parts, with ``no_sync``, one in one."""
    import paddle

    paddle.seed(0)
    layer = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.Tanh(), paddle.nn.Linear(3, 1))
    layer[2].bias.no_sync = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = wrapper(layer, None, 1, 0.5, group=None)
        loss = model.scale_loss(model(paddle.ones([1, 4])).mean())
        model.apply_collective_grads()
    found: dict[str, Any] = {"kinds": {each.category.__name__ for each in caught}}
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    x = paddle.arange(16, dtype="float32").reshape([4, 4]) / 16 + rank
    with model.no_sync():
        model(x[:2]).mean().backward()
    model(x[2:]).mean().backward()
    found["grads"] = [p.grad.flatten().tolist() for p in model.parameters()]
    optimizer.step()
    optimizer.clear_grad()
    model.set_dict({**model.state_dict(), "0.bias": paddle.full([3], 2.0)})
    state = model.state_dict(structured_name_prefix="net.")
    found["state"] = {name: value.flatten().tolist() for name, value in state.items()}
    found["loss"] = loss.item()
    found["is"] = [isinstance(model, each) for each in (paddle.DataParallel, ours.DataParallel)]
    return found


def side_by_side(rank: int) -> list[dict[str, Any]]:
    import paddle

    ours.init_parallel_env()
    return [trained(wrapper, rank) for wrapper in (paddle.DataParallel, ours.DataParallel)]


@pytest.mark.parametrize("nprocs", [2, 1])
def test_gradients_and_parameters_are_equal(nprocs: int) -> None:
    for rank, (paddles, own) in enumerate(replicas(side_by_side, nprocs=nprocs)):
        print(f"\nrank {rank} of {nprocs}")
        for name, value in paddles.items():
            print(f"  {name:6} {value}\n  {'':6} {own[name]}")
        assert own == paddles
        assert own["is"] == [True, True]
        assert ("UserWarning" in own["kinds"]) == (nprocs == 1)


# --- the same face --------------------------------------------------------------------------------


def test_names_signatures_and_defaults_are_paddles() -> None:
    import paddle
    import paddle.distributed as dist

    pairs = {
        "init_parallel_env": (ours.init_parallel_env, dist.init_parallel_env),
        "get_rank": (ours.get_rank, dist.get_rank),
        "get_world_size": (ours.get_world_size, dist.get_world_size),
        "sync_params_buffers": (ours.sync_params_buffers, dist.parallel.sync_params_buffers),
        "DataParallel": (ours.DataParallel.__new__, paddle.DataParallel.__init__),
    }
    for name, (here, there) in pairs.items():
        own, paddles = (
            [each for each in inspect.signature(one).parameters.values() if each.name != "cls"]
            for one in (here, there)
        )
        paddles = [each for each in paddles if each.name != "self"]
        print(name, [(each.name, each.default) for each in own])
        assert [(p.name, p.default) for p in own] == [(p.name, p.default) for p in paddles]
    properties = {name for name in vars(dist.ParallelEnv) if not name.startswith("_")}
    assert properties == {*ours.ParallelEnv.__annotations__}


def test_the_variables_of_a_trainer_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import paddle.distributed as dist

    given = {
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6070,10.0.0.2:6070",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.2:6070",
        "PADDLE_PG_TIMEOUT": "7000",
        "FLAGS_nccl_nrings": "3",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    paddles = dist.ParallelEnv()
    monkeypatch.setattr("xmp.plugins.paddle._environment.paddle_runs", lambda: False)
    with nothing_started():
        own = ours.ParallelEnv()
    for name in ours.ParallelEnv.__annotations__.keys() - {"device_id", "dev_id"}:
        print(name, getattr(own, name), getattr(paddles, name))
        assert getattr(own, name) == getattr(paddles, name)
