"""``data_parallel``: what is refused, with what to do, and a world of one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import xmp
from tests.support.frameworks import ddp_replicas as replicas
from tests.support.frameworks import together


def net() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    kind = "TypeError" if isinstance(caught.value, TypeError) else type(caught.value).__name__
    return f"{kind}: {caught.value}"


def misuses(rank: int) -> list[str]:
    import torch
    import torch.distributed as dist

    wrap: Any = xmp.data_parallel
    texts = [refused(lambda: wrap(net()))]
    xmp.init_process_group()
    first = dist.new_group([1 - rank])
    frozen = net()
    frozen.requires_grad_(False)
    meta, lazy = torch.nn.Linear(2, 2, device="meta"), torch.nn.LazyLinear(2)
    split = torch.nn.ModuleList([net(), torch.nn.Linear(2, 2, device="meta")])
    sparse = torch.nn.Embedding(3, 3, sparse=True)
    wrapped = wrap(net())
    bare = torch.nn.parallel.DistributedDataParallel(net())
    calls: list[Any] = [
        lambda: wrap(net(), group=first),
        lambda: wrap(net(), group="world"),
        lambda: wrap(frozen),
        lambda: wrap(meta),
        lambda: wrap(lazy),
        lambda: wrap(split),
        lambda: wrap(wrapped),
        lambda: wrap(bare),
        lambda: wrap(torch.nn.DataParallel(net())),
        lambda: wrap(sparse, comm_hook="fp16"),
        lambda: wrap(torch.nn.Linear(2, 2).to(torch.complex64), comm_hook="bf16"),
        lambda: wrap(net(), comm_hook="int8"),
        lambda: wrap(net(), comm_hook=3),
        lambda: wrap(net(), comm_hook=lambda bucket: None),
    ]
    return texts + [refused(call) for call in calls]


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch, the last one destroys its group."""
    return together(replicas, misuses, alone_in_its_group, without_default_group, nprocs=2)


SAID = [
    "PlanError: data_parallel() needs the process group, which is not there yet: call xmp.init_",
    "is not in the group",
    "TypeError: group must be a torch.distributed.ProcessGroup",
    "PlanError: Sequential has no parameter that requires a gradient",
    'PlanError: parameters on the "meta" device have no values: weight, bias',
    "PlanError: parameters of lazy modules have no shape yet: weight, bias",
    'the "meta" device have no values: 1.weight, 1.bias',
    "PlanError: the model is wrapped already, by DataParallel",
    "PlanError: the model is wrapped already, by DistributedDataParallel",
    "PlanError: the model is wrapped by torch.nn.DataParallel",
    "PlanError: comm_hook='fp16' cannot reduce the sparse gradients",
    "PlanError: comm_hook='bf16' would lose the imaginary part of gradients: weight, bias",
    "PlanError: comm_hook='int8': give 'bf16', 'fp16', 'powersgd', a hook",
    "TypeError: comm_hook is 3: give",
    "does not take (state, bucket), as torch calls it",
]


def test_what_cannot_be_trained_is_refused_with_what_to_do(found: dict[str, list[Any]]) -> None:
    for texts in found["misuses"]:
        assert len(texts) == len(SAID)
        for text, said in zip(texts, SAID):
            assert said in text


@pytest.mark.parametrize("name", ["bucket_mb", "first_bucket_mb"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "25", None])
def test_a_bucket_has_a_size(name: str, value: Any) -> None:
    given: dict[str, Any] = {name: value}
    text = refused(lambda: xmp.data_parallel(None, **given))
    kind = "PlanError" if type(value) in (int, float) else "TypeError"
    assert text.startswith(f"{kind}: {name}")
    assert repr(value) in text


HABITS = {
    "device_ids": [0],
    "output_device": 0,
    "bucket_cap_mb": 25,
    "process_group": None,
    "gradient_as_bucket_view": True,
    "broadcast_buffers": False,
    "find_unused_params": True,
}


@pytest.mark.parametrize("name", HABITS)
def test_torchs_keywords_are_answered(name: str) -> None:
    wrap: Any = xmp.data_parallel
    text = refused(lambda: wrap(None, **{name: HABITS[name]}))
    assert text.startswith(f"TypeError: data_parallel() does not take {name}=: ")
    assert (
        "leave it out" in text or "it is " in text or "did you mean find_unused_parameters" in text
    )


def test_all_keywords_are_answered_at_once_and_options_have_names() -> None:
    wrap: Any = xmp.data_parallel
    text = refused(lambda: wrap(None, device_ids=[0], bucket_cap_mb=3))
    assert "device_ids=: leave it out" in text
    assert "bucket_cap_mb=: it is bucket_mb= here" in text
    assert "takes one positional argument" in refused(lambda: wrap(None, [0]))
    assert "static_graph must be True or False" in refused(lambda: wrap(None, static_graph=1))


def of_jax(rank: int) -> str:
    import jax.numpy as jnp

    return refused(lambda: xmp.data_parallel({"layer": [{"w": jnp.ones(3)}]}))


def test_what_is_no_torch_module_is_refused_and_jax_gets_its_recipe() -> None:
    import torch

    text = replicas(of_jax, nprocs=2)[0]
    assert text.startswith(
        "TypeError: data_parallel() takes a torch.nn.Module, not dict. JAX needs"
    )
    assert 'xmp.all_reduce(grads, "mean")' in text
    text = refused(lambda: xmp.data_parallel("net"))
    assert text == "TypeError: data_parallel() takes a torch.nn.Module, not str"
    assert "not its class: write" in refused(lambda: xmp.data_parallel(torch.nn.Linear))


# --- a world of one ------------------------------------------------------------------------------


def test_in_a_world_of_one_the_face_is_the_same_and_a_warning_says_so() -> None:
    import torch

    inner = torch.nn.Linear(2, 2)
    inner.note = "kept"
    with pytest.warns(RuntimeWarning) as caught:
        model = xmp.data_parallel(inner, comm_hook="bf16", sync_batchnorm=True)
    (warning,) = caught
    assert str(warning.message).startswith("xmp: data_parallel in a world of one averages nothing")
    assert warning.filename == __file__
    assert isinstance(model, torch.nn.Module)
    assert model.module is inner
    assert model.note == "kept"
    assert list(model.state_dict()) == ["weight", "bias"]
    with model.no_sync(), model.join():
        assert torch.equal(model(torch.ones(1, 2)), inner(torch.ones(1, 2)))
    assert copy.deepcopy(model).module is not inner
    assert not torch.distributed.is_initialized()


def without_default_group(rank: int) -> list[str]:
    import torch.distributed as dist

    xmp.init_process_group()
    stale = dist.group.WORLD
    dist.destroy_process_group()
    given = stale, dist.GroupMember.NON_GROUP_MEMBER, "world"
    return [refused(lambda group=each: xmp.data_parallel(net(), group=group)) for each in given]


def test_a_group_without_the_default_group_is_refused(found: dict[str, list[Any]]) -> None:
    of_two = found["without_default_group"]
    (of_one,) = replicas(without_default_group, nprocs=1)
    for rank, (stale, outside, wrong) in [*enumerate(of_two), (0, of_one)]:
        assert stale.startswith("PlanError: group is not a process group of this process's torch")
        assert f"PlanError: data_parallel(group=…): rank {rank} is not in the group" in outside
        assert wrong.startswith("TypeError: group must be a torch.distributed.ProcessGroup")


def alone_in_its_group(rank: int) -> str:
    import torch.distributed as dist

    xmp.init_process_group()
    groups = [dist.new_group([0]), dist.new_group([1])]
    with pytest.warns(RuntimeWarning, match="in a group of one averages nothing"):
        xmp.data_parallel(net(), group=groups[rank])
    odd = net()
    odd[0].weight.data = odd[0].weight.data.t().contiguous().t()
    with pytest.warns(RuntimeWarning) as caught:
        xmp.data_parallel(odd)
    assert caught[0].filename == __file__
    return str(caught[0].message)


def test_a_group_of_one_and_strides_of_their_own_are_warned_of(found: dict[str, list[Any]]) -> None:
    for text in found["alone_in_its_group"]:
        assert text.startswith("xmp: parameters that are not contiguous: 0.weight.")


def test_who_asks_for_one_replica_is_not_warned_of_a_world_of_one() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xmp.spawn(lambda rank: xmp.data_parallel(net()), nprocs=1, runtime="cpu")
    assert [str(each.message) for each in caught] == []
