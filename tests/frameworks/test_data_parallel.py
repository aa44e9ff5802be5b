"""``data_parallel``: training on two or four replicas is training in one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import xmp
from tests.support.frameworks import ddp_replicas as replicas
from tests.support.frameworks import together

BATCH = 24  # divisible by the replicas, and each replica's part by three


def net(kind: str = "plain", seed: int = 0) -> Any:
    """A small model in float64; "norm" has BatchNorm, "branch" a part that some steps leave out."""
    import torch

    torch.manual_seed(seed)
    layers = [torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)]
    if kind == "norm":
        layers.insert(1, torch.nn.BatchNorm1d(16))
    model = torch.nn.Sequential(*layers).double()
    if kind == "branch":
        model.add_module("spare", Sometimes())
    return model


def data() -> Any:
    import torch

    random = torch.Generator().manual_seed(7)
    made = [torch.randn(BATCH, size, dtype=torch.float64, generator=random) for size in (5, 3)]
    return made[0], made[1]


def Sometimes() -> Any:  # noqa: N802 - a class of a module that only replicas import
    import torch

    class Extra(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3).double()
            self.used = True

        def forward(self, x: Any) -> Any:
            return self.inner(x) if self.used else x

    return Extra()


def train(model: Any, rank: int, size: int, branch: Any = None) -> dict[str, Any]:
    """Five steps on this replica's part of the batch; every second one without ``branch``."""
    import torch

    x, y = (each[rank::size] for each in data())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        if branch is not None:
            branch.used = step % 2 == 0
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return dict(model.state_dict())


def accumulate(model: Any, rank: int, size: int) -> dict[str, Any]:
    """As ``train``, but that only the last of three parts of a step averages."""
    import torch

    x, y = (each[rank::size] for each in data())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        first, second, last = zip(x.chunk(3), y.chunk(3))
        with model.no_sync():
            for some_x, some_y in (first, second):
                (torch.nn.functional.mse_loss(model(some_x), some_y) / 3).backward()
        (torch.nn.functional.mse_loss(model(last[0]), last[1]) / 3).backward()
        optimizer.step()
    return dict(model.state_dict())


def distance(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    assert list(found) == list(wanted)
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


# --- training ------------------------------------------------------------------------------------


def trains(rank: int) -> dict[str, float]:
    """How far each way of training ends from one process on the whole batch."""
    import torch.distributed as dist

    xmp.init_process_group()
    size, away = xmp.world_size(), {}

    def wrapped(kind: str = "plain", **options: Any) -> Any:
        return xmp.data_parallel(net(kind, seed=rank), **options)  # other weights on each replica

    alone = train(net(), 0, 1)
    for name, options in OPTIONS.items():
        away[name] = distance(train(wrapped(**options), rank, size), alone)
    away["accumulated"] = distance(accumulate(wrapped(), rank, size), alone)
    away["norm"] = distance(
        train(wrapped("norm", sync_batchnorm=True), rank, size), train(net("norm"), 0, 1)
    )
    model = wrapped("branch", find_unused_parameters=True)
    lone = net("branch")
    away["unused"] = distance(
        train(model, rank, size, branch=model.module.spare), train(lone, 0, 1, branch=lone.spare)
    )
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]
    model = xmp.data_parallel(net(seed=rank), group=mine)
    first = train(net(seed=rank % 2), 0, 1)  # of the group's first rank
    away["group"] = distance(train(model, xmp.rank(mine), 2), first)
    return away


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "static": {"static_graph": True},
    "buckets": {"bucket_mb": 0.0005, "first_bucket_mb": 1e-9},
    "powersgd": {"comm_hook": "powersgd"},  # its first thousand steps reduce in full
    "bf16": {"comm_hook": "bf16"},
    "fp16": {"comm_hook": "fp16"},
}
PRECISION = {"bf16": 2e-2, "fp16": 2e-3}


def test_training_is_that_of_one_process_on_the_global_batch() -> None:
    for away in replicas(trains, nprocs=4):
        for name, distance in away.items():
            assert distance < PRECISION.get(name, 1e-10), (name, away)
        for name in PRECISION:
            assert away[name] > 1e-10, f"{name}: nothing was rounded"


def hooks(rank: int) -> Any:
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    xmp.init_process_group()
    seen = []

    def counting(state: Any, bucket: Any) -> Any:
        seen.append(state)
        return default_hooks.allreduce_hook(None, bucket)

    alone = train(net(), 0, 1)
    pair = distance(train(xmp.data_parallel(net(), comm_hook=(counting, "mine")), rank, 2), alone)
    bare = train(xmp.data_parallel(net(), comm_hook=default_hooks.fp16_compress_hook), rank, 2)
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    early = xmp.data_parallel(net(), comm_hook=(powerSGD_hook.powerSGD_hook, state))
    sgd = train(early, rank, 2)
    same = all(torch.equal(sgd[name], first) for name, first in xmp.broadcast(sgd, 0).items())
    return pair, set(seen), distance(bare, alone), distance(sgd, alone), same


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch for all."""
    return together(
        replicas, hooks, normalises, averages_odd_gradients, shows_the_model, copies, nprocs=2
    )


def test_hooks_of_torchs_are_taken_with_and_without_a_state(found: dict[str, list[Any]]) -> None:
    for pair, states, bare, sgd, same in found["hooks"]:
        assert pair < 1e-10
        assert states == {"mine"}
        assert 1e-10 < bare < 2e-3
        assert sgd > 1e-10, "nothing was approximated"
        assert same


def normalises(rank: int) -> Any:
    """BatchNorm over images, without running statistics, with a cumulative average, in eval."""
    import torch

    xmp.init_process_group()
    torch.manual_seed(1)  # the same on all replicas
    x, weights = torch.randn(2, 8, 3, 4, 4, dtype=torch.float64)
    away = []
    kinds: list[dict[str, Any]] = [{}, {"momentum": None}, {"affine": False}]
    for options in [*kinds, {"track_running_stats": False}]:
        layer = torch.nn.BatchNorm2d(3, **options)
        lone = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), layer).double()
        both = copy.deepcopy(lone)
        weight, norm = both[0].weight, both[1]
        model = xmp.data_parallel(both, sync_batchnorm=True)
        assert model.module is both
        assert both[0].weight is weight
        assert both[1].weight is norm.weight, "an optimizer made before holds this one"
        assert both[1].running_mean is norm.running_mean
        for _ in range(3):
            (lone(x) * weights).square().sum().backward()
            (2 * (model(x[rank::2]) * weights[rank::2]).square().sum()).backward()
        away.append(distance(model.state_dict(), lone.state_dict()))
        assert torch.allclose(lone[0].weight.grad, both[0].weight.grad, atol=1e-10)
        model.eval()
        lone.eval()
        away.append(float((model(x[rank::2]) - lone(x[rank::2])).abs().max()))
    alone = xmp.data_parallel(torch.nn.BatchNorm1d(3), sync_batchnorm=True)
    alone(torch.full((2, 3), float(rank)))
    return away, alone.running_mean.tolist(), copy.deepcopy(alone), alone


def test_batch_norm_has_the_statistics_of_the_global_batch(found: dict[str, list[Any]]) -> None:
    for away, mean, copied, arrived in found["normalises"]:
        assert max(away[:6]) < 1e-10, away
        assert mean == pytest.approx([0.05] * 3), "a model that is one BatchNorm layer"
        assert max(away[6::2]) < 1e-10
        import torch

        x = torch.randn(4, 3)
        for layer in (copied, arrived):
            layer.running_mean.zero_()
            layer(x)
            assert torch.allclose(layer.running_mean, x.mean(0) / 10)


def averages_odd_gradients(rank: int) -> Any:
    """Sparse gradients, complex parameters, and a model that only one optimizer has seen before."""
    import torch

    xmp.init_process_group()
    found = []
    for model, x in (
        (torch.nn.Embedding(4, 2, sparse=True), torch.tensor([0, rank + 1])),
        (torch.nn.Linear(2, 1, dtype=torch.complex64), torch.full((1, 2), 1 + rank * 1j)),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        wrapped = xmp.data_parallel(model)
        before = model.weight.detach().clone()
        wrapped(x).abs().sum().backward()
        optimizer.step()
        assert not torch.equal(model.weight, before)
        firsts = xmp.broadcast(dict(wrapped.state_dict()), 0)
        found.append(all(torch.equal(wrapped.state_dict()[name], firsts[name]) for name in firsts))
    return found


def test_sparse_and_complex_gradients_are_averaged(found: dict[str, list[Any]]) -> None:
    assert found["averages_odd_gradients"] == [[True, True]] * 2


# --- the face ------------------------------------------------------------------------------------


def shows_the_model(rank: int) -> Any:
    import torch

    xmp.init_process_group()

    class Net(torch.nn.Module):
        dim = 512  # of a name that torch's wrapper has too

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.temperature = 1.0
            self.logger = "mine"

        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return self.layer(x) * scale

        def double_of(self, x: float) -> float:
            return 2 * x

    inner = Net().eval()
    with pytest.warns(RuntimeWarning, match=r"hides .* of its own: logger\. Read") as caught:
        model = xmp.data_parallel(inner)
    assert caught[0].filename == __file__
    assert isinstance(model, torch.nn.Module)
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
    assert model.module is inner
    assert not model.training
    assert model.double_of(3) == 6
    assert model.layer is inner.layer
    model.temperature = 2.0
    assert inner.temperature == model.temperature == 2.0
    assert model.dim == 512
    assert {"temperature", "double_of", "layer", "no_sync", "join"} <= set(dir(model))
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'colour'"):
        _ = model.colour
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
    zero = {name: torch.zeros_like(each) for name, each in inner.state_dict().items()}
    assert str(model.load_state_dict(zero)) == "<All keys matched successfully>"
    assert not inner.layer.weight.any()
    assert model(torch.ones(1, 2), scale=3.0).tolist() == [[0.0, 0.0]]
    bare = {f"module.{name}": each + 1 for name, each in zero.items()}
    with pytest.raises(RuntimeError, match="consume_prefix_in_state_dict_if_present"):
        model.load_state_dict(bare)
    with pytest.warns(RuntimeWarning, match="has loaded nothing") as caught:
        model.load_state_dict(bare, strict=False)
    assert caught[0].filename == __file__
    around = torch.nn.ModuleDict({"net": model})
    assert list(around.state_dict()) == ["net.layer.weight", "net.layer.bias"]
    around.load_state_dict({f"net.{name}": each + 5 for name, each in zero.items()})
    assert inner.layer.bias.tolist() == [5.0, 5.0]
    return True


def test_the_wrapper_shows_the_model(found: dict[str, list[Any]]) -> None:
    assert found["shows_the_model"] == [True, True]


def copies(rank: int) -> Any:
    import torch

    xmp.init_process_group()
    model = xmp.data_parallel(net("norm"), sync_batchnorm=True, comm_hook="fp16")
    twin = copy.deepcopy(model) if rank == 0 else None  # no communication
    twin = twin or copy.deepcopy(model)
    assert type(twin) is type(model)
    assert twin.module is not model.module
    with torch.no_grad():
        model.module[0].weight.zero_()
    assert twin.module[0].weight.any()
    train(twin, rank, 2)
    first = xmp.broadcast(dict(twin.state_dict()), 0)
    assert distance(dict(twin.state_dict()), first) == 0
    sub = xmp.data_parallel(net(), group=torch.distributed.new_group([0, 1]))
    assert copy.deepcopy(sub).process_group is sub.process_group
    return {"model": model, "state": model.state_dict()}


def test_a_copy_is_wrapped_and_a_result_is_the_model(found: dict[str, list[Any]]) -> None:
    import torch

    for result in found["copies"]:
        assert type(result["model"]) is torch.nn.Sequential
        assert not result["model"][0].weight.any()
        assert list(result["state"]) == list(result["model"].state_dict())
