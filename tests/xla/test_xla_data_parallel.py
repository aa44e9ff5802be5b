"""``data_parallel`` on torch_xla: gradients are averaged after each backward."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

import xmp
from tests.support.frameworks import replicas
from tests.xla.test_xla_threads import two_on_the_cpu

pytestmark = pytest.mark.xla

__all__ = ["two_on_the_cpu"]  # an automatic fixture: a process with two devices of the CPU

KINDS = ("plain", "accumulated", "norm", "buckets", "unused")


def net(kind: str, seed: int) -> Any:
    import torch

    random = torch.Generator().manual_seed(seed)
    layers = [torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)]
    if kind == "norm":
        layers.insert(1, torch.nn.BatchNorm1d(8))
    model = torch.nn.Sequential(*layers).double()
    if kind == "unused":
        model[0].spare = torch.nn.Linear(2, 2).double()  # which forward() does not call
        model[0].spare.weight.data.fill_(float(seed))
        model[0].spare.bias.data.fill_(float(seed))
    with torch.no_grad():
        for each in layers[0], layers[-1]:
            for parameter in each.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=random))
    return model


def train(model: Any, device: Any, rank: int, size: int, parts: int = 1) -> dict[str, Any]:
    """Four steps on this replica's part of the batch, each in ``parts``."""
    import torch

    random = torch.Generator().manual_seed(3)
    x = torch.randn(12, 5, dtype=torch.float64, generator=random)[rank::size].to(device)
    y = torch.randn(12, 3, dtype=torch.float64, generator=random)[rank::size].to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        *first, last = zip(x.chunk(parts), y.chunk(parts))
        if first:
            with model.no_sync():
                for each in first:
                    (torch.nn.functional.mse_loss(model(each[0]), each[1]) / parts).backward()
        (torch.nn.functional.mse_loss(model(last[0]), last[1]) / parts).backward()
        optimizer.step()
    return {name: each.detach().cpu() for name, each in model.state_dict().items()}


def trains(base: int) -> dict[str, float]:
    import torch

    device, rank, size, away = xmp.device(), xmp.rank(), xmp.world_size(), {}
    options: dict[str, dict[str, Any]] = {
        "norm": {"sync_batchnorm": True},
        "buckets": {"bucket_mb": 0.0003, "first_bucket_mb": 1e-6},
        "unused": {"find_unused_parameters": True},
    }
    for kind in KINDS:
        parts = 3 if kind == "accumulated" else 1
        inner = net(kind, base + rank).to(device)
        weight = inner[0].weight
        model = xmp.data_parallel(inner, **options.get(kind, {}))
        assert model.module[0].weight is weight
        found = train(model, device, rank, size, parts)
        wanted = train(net(kind, base), torch.device("cpu"), 0, 1)
        assert list(found) == list(wanted)
        away[kind] = max(float((found[name] - wanted[name]).abs().max()) for name in wanted)
    return away


def test_training_is_that_of_one_process_on_the_global_batch() -> None:
    for away in xmp.launcher(trains, nprocs=2, runtime="pjrt", backend="gloo")(5):
        assert set(away) == set(KINDS)
        assert max(away.values()) < 1e-10, away


def is_robust() -> Any:
    """A backward that raised, two of one forward, a copy, a missing gradient, a group."""
    import torch
    import torch.distributed as dist

    device, rank, texts = xmp.device(), xmp.rank(), []
    x = torch.full((2, 5), float(rank + 1), dtype=torch.float64, device=device)

    def are_equal(model: Any) -> bool:
        mine = [each.grad.cpu() for each in model.parameters() if each.grad is not None]
        return all(map(torch.equal, mine, xmp.broadcast(mine, 0)))

    model = xmp.data_parallel(net("plain", 0).to(device))

    def fails(gradient: Any) -> None:
        raise KeyError("once")

    output = model(x)
    handle = model.module[0].weight.register_hook(fails)
    with pytest.raises(KeyError):
        output.sum().backward()
    handle.remove()
    model.zero_grad()
    loss = model(x).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert are_equal(model)
    twin = copy.deepcopy(model)
    twin.zero_grad()
    twin(x).sum().backward()
    assert are_equal(twin)
    assert twin.module is not model.module
    group = dist.new_group([0, 1])
    model = xmp.data_parallel(net("plain", rank).to(device), group=group)
    model(x).sum().backward()
    assert are_equal(model)
    for options in ({"comm_hook": "bf16"}, {"group": "world"}):
        with pytest.raises((TypeError, ValueError)) as caught:
            xmp.data_parallel(net("plain", 0).to(device), **options)
        texts.append(str(caught.value))
    model = xmp.data_parallel(net("unused", 0).to(device))
    with pytest.raises(RuntimeError) as caught_later:
        model(x).sum().backward()
    return [*texts, str(caught_later.value)]


def test_what_does_not_fit_is_refused_and_no_backward_is_left_out() -> None:
    for texts in xmp.launcher(is_robust, nprocs=2, runtime="pjrt", backend="gloo")():
        assert texts[0].startswith("comm_hook= belongs to torch's DistributedDataParallel")
        assert texts[1].startswith("group must be a torch.distributed.ProcessGroup")
        assert "without a gradient after backward(): 0.spare.weight, 0.spare.bias. If" in texts[2]


def reductions(wrap: Any) -> list[int]:
    """The all-reduces in the graph of the gradients, after a backward within no_sync and after one
    that averages; the graph is not run."""
    import torch
    import torch_xla

    model = wrap(net("plain", 0).to(xmp.device()))
    x = torch.ones(2, 5, dtype=torch.float64, device=xmp.device())
    counts = []
    with model.no_sync():
        model(x).sum().backward()
    for _ in range(2):
        text = torch_xla._XLAC._get_xla_tensors_hlo([each.grad for each in model.parameters()])
        counts.append(text.count(" all-reduce("))
        model(x).sum().backward()
    return counts


def on_the_mesh(rank: int) -> list[int]:
    """Without the broadcast of the start: threads that share a CPU would run it apart."""
    from xmp._inside.identity import current
    from xmp._words.framework import AveragingOptions
    from xmp.plugins.data_parallel._xla_gradients import AveragingModel

    scope: Any = current().framework
    return reductions(lambda model: AveragingModel(model, AveragingOptions(), scope))


def test_on_the_mesh_the_reduction_is_part_of_the_steps_graph() -> None:
    # launcher would wait for the device at the end, and so run the graph.
    for without, averaged in replicas(on_the_mesh, runtime="two_on_the_cpu", nprocs=2):
        assert without == 0
        assert averaged >= 1


def alone() -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        counts = reductions(xmp.data_parallel)
    return counts, [str(each.message) for each in caught if "xmp:" in str(each.message)]


def test_in_a_world_of_one_there_is_nothing_to_reduce() -> None:
    ((counts, said),) = xmp.launcher(alone, nprocs=1, runtime="pjrt", start_method="forkserver")()
    assert counts == [0, 0]
    (text,) = said
    assert text.startswith("xmp: data_parallel in a world of one averages nothing")
