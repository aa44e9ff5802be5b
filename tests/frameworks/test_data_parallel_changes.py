"""What a program does with a model after it has wrapped it: what goes on, and what is refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import xmp
from tests.support.averaging import are_equal, inputs, net
from tests.support.frameworks import ddp_replicas as replicas
from tests.support.frameworks import together


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises((RuntimeError, xmp.PlanError)) as caught:
        call()
    return str(caught.value)


def adds_to_the_wrapper(rank: int) -> dict[str, Any]:
    """What is set on a wrapper lands on the model: its state has it, and the watch sees it."""
    import torch

    xmp.init_process_group()
    x, said = inputs(rank), {}
    wraps: list[Callable[[Any], Any]] = [xmp.data_parallel]
    if rank == 0:  # a group of one
        wraps.append(alone)
    for wrap in wraps:
        for name, add in {
            "set": lambda model: setattr(model, "head", torch.nn.Linear(2, 2)),
            "replaced": lambda model: setattr(model, "0", torch.nn.Linear(3, 4)),
            "module": lambda model: model.add_module("head", torch.nn.Linear(2, 2)),
            "parameter": lambda model: model.register_parameter(
                "head", torch.nn.Parameter(torch.ones(1))
            ),
        }.items():
            model = wrap(net())
            add(model)
            at = "0" if name == "replaced" else "head"
            assert any(key.startswith(at) for key in model.state_dict())
            assert all(key.startswith("module.") for key, _ in model.named_parameters())
            if wrap is xmp.data_parallel:
                said[name] = refused(partial(model, x))
        model = wrap(net())
        model.register_buffer("steps", torch.zeros(1))
        model.note = "the wrapper's own"
        model.module.mark = "the model's"
        assert model.state_dict()["steps"].item() == 0
        assert not hasattr(model.module, "note")
        del model.mark, model.note
        assert not hasattr(model.module, "mark")
        assert not hasattr(model, "note")
        model(x).sum().backward()
    return said


def alone(model: Any) -> Any:
    from xmp.plugins.data_parallel._model_face import Alone

    return Alone(model)


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch for all."""
    return together(replicas, adds_to_the_wrapper, stays_right, moves, differs, nprocs=2)


def test_what_is_set_on_the_wrapper_is_the_models(found: dict[str, list[Any]]) -> None:
    for said in found["adds_to_the_wrapper"]:
        assert len(said) == 4
        for text in said.values():
            assert "or were added or replaced" in text


def stays_right(rank: int) -> list[str]:
    """Programs that torch's DistributedDataParallel averages right: no error and no warning."""
    import torch

    xmp.init_process_group()
    x = inputs(rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        maker, critic = xmp.data_parallel(net()), xmp.data_parallel(torch.nn.Linear(2, 1))
        for _ in range(2):
            critic.requires_grad_(False)
            maker.zero_grad()
            critic(maker(x)).mean().backward()
            critic.requires_grad_(True)
            critic.zero_grad()
            critic(maker(x).detach()).mean().backward()
            assert are_equal(maker.module)
            assert are_equal(critic.module)

        model = xmp.data_parallel(net())
        names = dict(model.named_parameters())
        for doubled in (names, {"module.0.weight": names["module.0.weight"]}):
            values = {name: each * 2 for name, each in doubled.items()}
            torch.func.functional_call(model, values, (x,)).square().sum().backward()
            assert are_equal(model.module)
        model.to(torch.float32)
        model(x).sum().backward()

        shared = torch.nn.Linear(3, 3)
        both = [xmp.data_parallel(torch.nn.Sequential(shared, net())) for _ in range(2)]
        for each in (*both, *both):
            each(x).sum().backward()
            assert are_equal(each.module)
        again = xmp.data_parallel(both[0].module)  # the first wrapper is still there
        for _ in range(2):
            again.zero_grad()
            again(x).sum().backward()
            assert are_equal(again.module)

        again.requires_grad_(False)
        teacher = copy.deepcopy(again)
        assert torch.equal(teacher(x), again(x))
        assert list(teacher.state_dict()) == list(again.state_dict())
    return [str(each.message) for each in caught if "xmp" in str(each.message)]


def test_what_torch_averages_right_is_neither_refused_nor_warned_of(
    found: dict[str, list[Any]],
) -> None:
    assert found["stays_right"] == [[], []]


def moves(rank: int) -> list[str]:
    import torch

    xmp.init_process_group()
    x, said = inputs(rank), []
    for move in (lambda model: model.double(), lambda model: model.module[0].double()):
        model = xmp.data_parallel(net())
        model(x).sum().backward()
        move(model)
        said.append(refused(partial(model, x.double())))
        model = xmp.data_parallel(model.module.double())
        model.zero_grad()
        model(x.double()).sum().backward()
        assert are_equal(model.module)

    model = xmp.data_parallel(net(), static_graph=True)
    with model.no_sync():
        said.append(refused(partial(model, x)))
    model(x).sum().backward()
    with model.no_sync():
        model(x).sum().backward()
    model(x).sum().backward()
    assert are_equal(model.module)
    model.compile(backend="eager")  # in place
    said.append(refused(partial(xmp.data_parallel, torch.compile(model, backend="eager"))))
    compiled = xmp.data_parallel(torch.compile(net(), backend="eager"))
    compiled(x).sum().backward()
    again = xmp.data_parallel(compiled.module)
    assert hasattr(again.module, "_orig_mod")  # is compiled, still
    with torch.inference_mode():
        inferred = net()
    said.append(refused(partial(xmp.data_parallel, inferred)))
    return said


def test_what_torch_averages_wrong_or_asserts_is_refused(found: dict[str, list[Any]]) -> None:
    for whole, part, static, compiled, inferred in found["moves"]:
        for text in (whole, part):
            assert text.startswith("parameters have changed their dtype or device")
            assert "xmp.data_parallel(model.module)" in text
            assert "compile" in text
        assert static.startswith("with static_graph=True the first forward and backward must")
        assert compiled.startswith("the model is wrapped already, by DataParallel: give the model")
        assert compiled.endswith(", and compile the result [XMP-P15]")
        assert inferred.startswith("parameters were made under torch.inference_mode()")


def differs(rank: int) -> dict[str, str]:
    """Each case is made on rank 1 alone."""
    import torch

    xmp.init_process_group()

    def ordered(names: str) -> Any:
        model = torch.nn.Module()
        for name in names:
            model.add_module(name, torch.nn.Linear(2, 2, bias=False))
        return model

    def frozen() -> Any:
        model = net()
        model[0].requires_grad_(False)
        return model

    def with_buffer(*shape: int) -> Any:
        model = net()
        model.register_buffer("extra", torch.ones(shape))
        return model

    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "frozen": (net(), frozen(), {}),
        "order": (ordered("ab"), ordered("ba"), {}),
        "shape of a buffer": (with_buffer(3), with_buffer(4), {}),
        "a buffer": (net(), with_buffer(3), {}),
        "dtype": (net(), net().double(), {}),
        "find_unused_parameters": (net(), net(), {"find_unused_parameters": True}),
        "static_graph": (net(), net(), {"static_graph": True}),
        "sync_batchnorm": (net(), net(), {"sync_batchnorm": True}),
        "bucket_mb": (net(), net(), {"bucket_mb": 1}),
        "comm_hook": (net(), net(), {"comm_hook": "bf16"}),
    }
    said = {}
    for name, (firsts, seconds, options) in cases.items():
        model, given = (firsts, {}) if rank == 0 else (seconds, options)
        said[name] = refused(partial(xmp.data_parallel, model, **given))
    model = xmp.data_parallel(net(), bucket_mb=25 if rank == 0 else 25.0)
    model(inputs(rank)).sum().backward()
    assert are_equal(model.module)
    return said


def test_replicas_that_wrap_different_models_or_pass_other_options_all_learn_of_it(
    found: dict[str, list[Any]],
) -> None:
    first, second = found["differs"]
    assert first == second
    start = "replicas differ in what they give to data_parallel: rank 1 has"
    for name, difference in {
        "frozen": "0.weight (torch.float32, shape [4, 3], frozen), rank 0 has",
        "order": "b.weight (torch.float32, shape [2, 2]), rank 0 has a.weight",
        "shape of a buffer": "extra (torch.float32, shape [4]), rank 0 has extra",
        "a buffer": "extra (torch.float32, shape [3]), rank 0 has no more buffers. Make",
        "dtype": "0.weight (torch.float64, shape [4, 3]), rank 0 has 0.weight",
        "find_unused_parameters": "find_unused_parameters=True, rank 0 has",
        "static_graph": "static_graph=True, rank 0 has static_graph=False. Make",
        "sync_batchnorm": "sync_batchnorm=True, rank 0 has sync_batchnorm=False",
        "bucket_mb": "bucket_mb=1.0, rank 0 has bucket_mb=25.0",
        "comm_hook": "comm_hook='bf16', rank 0 has comm_hook=None",
    }.items():
        assert first[name].startswith(f"{start} {difference}"), first[name]
