"""``sync_params_buffers`` of ``xmp.compat.paddle`` for models of torch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import xmp.compat.paddle as dist
from tests.support.frameworks import ddp_replicas, together
from tests.support.lazily import lazily

torch = lazily("torch")


def test_alone_there_is_nothing_to_send() -> None:
    model = torch.nn.Linear(1, 1)
    before = model.weight.item()
    dist.sync_params_buffers(model)
    assert model.weight.item() == before
    with pytest.raises(ValueError, match="src is 1; this launch has the ranks 0 to 0"):
        dist.sync_params_buffers(model, src_rank=1)


def mixed(value: float) -> Any:
    class Mixed(torch.nn.Module):
        """Parameters and buffers of every kind that is told apart."""

        def __init__(self, value: float, shape: tuple[int, ...] = (2, 3)) -> None:
            super().__init__()
            for name in ("plain", "no_sync", "expert", "is_distributed"):
                self.register_parameter(name, torch.nn.Parameter(torch.full(shape, value)))
            self.no_sync.no_sync = self.expert.no_sync = self.expert.expert = True
            self.is_distributed.is_distributed = True
            self.register_buffer("kept", torch.full((2,), int(value)))
            self.register_buffer("not_kept", torch.full((2,), value), persistent=False)
            self.turned = torch.nn.Parameter(torch.full(shape, value).t())
            self.child = torch.nn.Linear(1, 1).bfloat16()
            torch.nn.init.constant_(self.child.weight, value)

        def values(self) -> dict[str, float]:
            tensors = [*self.named_parameters(), *self.named_buffers()]
            return {name: tensor.flatten()[-1].item() for name, tensor in tensors}

    return Mixed(value)


def synchronized(rank: int) -> list[Any]:
    group = dist.init_parallel_env()
    found = []
    for options in (
        {"src_rank": 1},
        {"src_rank": 1, "fuse_params": False, "comm_group": group},
        {"is_model_parallel": True, "comm_group": torch.distributed.group.WORLD},
        {"is_moe_sharding_parallel": True},
    ):
        model = mixed(rank + 1.0)
        dist.sync_params_buffers(model, **options)  # type: ignore[arg-type]
        values = model.values()
        del values["child.bias"]
        sent = [name for name, value in values.items() if value != rank + 1.0]
        found.append((sent, sorted({*values.values()})))
    return found


def refusals(rank: int) -> list[str]:
    dist.init_parallel_env()
    model = torch.nn.Linear(1 + rank, 1)
    texts = []
    for given in (torch.nn.Linear, 3):
        with pytest.raises(TypeError) as wrong:
            dist.sync_params_buffers(given)
        texts.append(str(wrong.value))
    with pytest.raises(ValueError, match="src is 2; this launch has the ranks 0 to 1"):
        dist.sync_params_buffers(model, src_rank=2)
    first = torch.distributed.new_group([0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.sync_params_buffers(model, first)
    texts += [str(each.message) for each in caught]
    try:
        dist.sync_params_buffers(model)
    except ValueError as error:
        texts.append(str(error))
    return texts


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch for all."""
    return together(ddp_replicas, synchronized, refusals)


def test_values_of_one_trainer_reach_all(found: dict[str, list[Any]]) -> None:
    every = ["plain", "is_distributed", "turned", "child.weight", "kept"]
    first, second = found["synchronized"]
    assert [sent for sent, _ in first] == [every, every, [], []]
    assert [sent for sent, _ in second] == [
        [],
        [],
        ["plain", "turned", "child.weight", "kept"],
        ["plain", "expert", "is_distributed", "turned", "child.weight", "kept"],
    ]
    assert all(values == [1.0, 2.0] for _, values in (*first[:2], *second[2:]))


def test_models_and_groups_that_do_not_fit_are_refused(found: dict[str, list[Any]]) -> None:
    first, second = found["refusals"]
    for texts in (first, second):
        assert "takes a torch.nn.Module or a paddle.nn.Layer, not type" in texts[0]
        assert "takes a torch.nn.Module or a paddle.nn.Layer, not int: 3" in texts[1]
    assert len(first) == 2
    assert texts[2] == "sync_params_buffers() does nothing: rank 1 is not in comm_group"
    assert (
        "rank 0 has {'weight': (1, 1), 'bias': (1,)}, and rank 1 has {'weight': (1, 2)" in second[3]
    )
