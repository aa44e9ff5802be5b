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
from tests.support.frameworks import replicas as any_replicas

replicas = partial(any_replicas, runtime="cpu")


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
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
    from xmp._frameworks._model_face import Alone

    return Alone(model)


def test_what_is_set_on_the_wrapper_is_the_models() -> None:
    for said in replicas(adds_to_the_wrapper, nprocs=2):
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


def test_what_torch_averages_right_is_neither_refused_nor_warned_of() -> None:
    assert replicas(stays_right, nprocs=2) == [[], []]


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
    with torch.inference_mode():
        inferred = net()
    said.append(refused_as_a_plan(inferred))
    return said


def refused_as_a_plan(model: Any) -> str:
    with pytest.raises(xmp.PlanError) as caught:
        xmp.data_parallel(model)
    return str(caught.value)


def test_what_torch_averages_wrong_or_asserts_is_refused() -> None:
    for whole, part, static, inferred in replicas(moves, nprocs=2):
        for text in (whole, part):
            assert text.startswith("parameters have changed their dtype or device")
            assert "xmp.data_parallel(model.module)" in text
            assert "compile" in text
        assert static.startswith("with static_graph=True the first forward and backward must")
        assert inferred.startswith("parameters were made under torch.inference_mode()")
