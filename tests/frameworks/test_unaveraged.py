"""What data-parallel training would get wrong in silence is an error or a warning."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest

import xmp
from tests.support.averaging import are_equal, inputs, net
from tests.support.frameworks import ddp_replicas as replicas
from tests.support.frameworks import together


def trains_around(rank: int) -> dict[str, Any]:
    """What was said, and whether gradients were averaged."""
    xmp.init_process_group()
    x, seen = inputs(rank), {}

    def note(name: str, *backwards: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for backward in backwards:
                backward()
        texts = [str(each.message) for each in caught]
        places = {each.filename for each in caught}
        seen[name] = (texts, places <= {__file__}, all(xmp.all_gather(are_equal(model.module))))

    model = xmp.data_parallel(net())
    note("usual", *[lambda: model(x).sum().backward()] * 3)
    two = model(x).sum() + model(2 * x).sum()
    note("two forwards, one backward", lambda: two.backward())
    note("inner", lambda: model.module(x).sum().backward())
    note("inner again, said once", lambda: model.module(x).sum().backward())
    model = xmp.data_parallel(net())
    note("inner at first", lambda: model.module(x).sum().backward())
    model = xmp.data_parallel(net())
    note("only the first layer", lambda: model.module[0](x).sum().backward())
    model = xmp.data_parallel(net())
    loss = model(x).sum()
    note("first backward", lambda: loss.backward(retain_graph=True))
    note("second backward", lambda: loss.backward())
    model = xmp.data_parallel(net())
    with model.no_sync():
        kept = [model(x).sum(), model(2 * x).sum()]
    note("within no_sync", *[each.backward for each in kept])
    note("closing", lambda: model(x).sum().backward())
    return seen


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch for all."""
    return together(
        replicas,
        trains_around,
        forgets_either_way,
        ends_an_epoch_within_no_sync,
        changes,
        wraps_again,
        nprocs=2,
    )


SILENT = {"usual", "two forwards, one backward", "inner again, said once", "first backward"}


def test_a_backward_that_averages_nothing_is_warned_of_once(found: dict[str, list[Any]]) -> None:
    first, second = found["trains_around"]
    assert first.keys() == second.keys()
    for name, (texts, in_this_file, averaged) in second.items():
        if name in SILENT | {"within no_sync", "closing"}:
            assert texts == [], name
        else:
            (text,) = texts
            assert text.startswith("xmp: the gradients of a backward() are not averaged"), name
            assert in_this_file, name
        should = name in {*SILENT, "closing"} - {"inner again, said once"}
        assert averaged == should, f"{name}: the test's own idea of torch is wrong"


def forgets_to_average(rank: int, static_graph: bool) -> list[str]:
    import torch

    xmp.init_process_group()
    model = xmp.data_parallel(net(), static_graph=static_graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, texts = inputs(rank), []
    model(x).sum().backward()  # a static graph must not begin within no_sync(): torch asserts it
    optimizer.zero_grad()
    for parts in (2, 2):  # accumulated, and averaged before the step
        for part in range(parts):
            if part < parts - 1:
                with model.no_sync():
                    model(x).sum().backward()
            else:
                model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for _ in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with model.no_sync():
                model(x).sum().backward()
            optimizer.step()
        texts += [str(each.message) for each in caught]
        assert {each.filename for each in caught} <= {__file__}
    return texts


def forgets_either_way(rank: int) -> list[list[str]]:
    return [forgets_to_average(rank, static_graph) for static_graph in (False, True)]


def test_steps_within_no_sync_alone_are_warned_of_once(found: dict[str, list[Any]]) -> None:
    for (text,), (static,) in found["forgets_either_way"]:
        assert static == text
        assert text.startswith(
            "xmp: an optimizer has made a step with gradients of a backward() within"
        )


def ends_an_epoch_within_no_sync(rank: int) -> tuple[list[str], bool, int, int]:
    """Nothing here is a step on what was not averaged; the gradients left over are, later on."""
    import torch
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    xmp.init_process_group()
    before = len(hooks)
    model, other = xmp.data_parallel(net()), torch.nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    x = inputs(rank)

    def closure() -> Any:
        loss = model(x).square().sum()
        loss.backward()
        return loss

    def left_over() -> None:
        with model.no_sync():
            model(x).sum().backward()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        left_over()
        model.load_state_dict(model.state_dict())
        left_over()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.0)
        left_over()
        other(x).sum().backward()
        torch.optim.SGD(other.parameters(), lr=0.1).step()  # another model's
        left_over()
        optimizer.step(closure)
        same = are_equal(model.module)
        left_over()
        model.zero_grad()
        torch.optim.SGD(model.parameters(), lr=0.1).step()  # has nothing to do
        model(x).sum().backward()
        with model.no_sync():
            model(x)  # no backward follows
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        left_over()
    during = len(hooks)
    model = optimizer = None
    gc.collect()
    return [str(each.message) for each in caught], same, during - before, len(hooks) - before


def test_what_changes_parameters_within_no_sync_without_a_step_is_no_mistake(
    found: dict[str, list[Any]],
) -> None:
    expected: Any = ([], True, 1, 0)
    assert found["ends_an_epoch_within_no_sync"] == [expected] * 2


def changes(rank: int) -> dict[str, str]:
    import torch

    xmp.init_process_group()
    x, said = inputs(rank), {}

    def fresh(**options: Any) -> Any:
        model = net()
        model[0].bias.requires_grad_(False)
        wrapped = xmp.data_parallel(model, **options)
        wrapped(x).sum().backward()
        return wrapped

    def error(name: str, model: Any) -> None:
        with torch.no_grad():
            model(x)
        with pytest.raises(RuntimeError) as caught:
            model(x)
        said[name] = str(caught.value)

    model = fresh()
    model.module.append(torch.nn.Linear(2, 2))
    error("added", model)
    model = xmp.data_parallel(model.module)  # as the error says
    for _ in range(2):
        model.zero_grad()
        model(x).sum().backward()
        assert are_equal(model.module)
    model = fresh()
    model.module[2].weight = torch.nn.Parameter(torch.zeros(2, 4))
    error("replaced", model)
    model = fresh()
    model.module[0].bias.requires_grad_(True)
    error("unfrozen", model)
    model = fresh()
    model.module[2].weight.requires_grad_(False)
    error("frozen", model)
    model = fresh()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    error("assigned", model)

    model = fresh(find_unused_parameters=True)
    model.module[2].weight.requires_grad_(False)
    model.module.append(torch.nn.Dropout(0.0))  # has no parameters
    for _ in range(2):
        model.zero_grad()
        model(x).sum().backward()
        assert are_equal(model.module)
    model.module[2].weight.requires_grad_(True)
    model(x).sum().backward()
    assert are_equal(model.module)
    return said


def test_parameters_that_training_would_not_average_are_an_error_at_the_next_call(
    found: dict[str, list[Any]],
) -> None:
    for said in found["changes"]:
        for name, parameters in {
            "added": "3.weight, 3.bias",
            "replaced": "2.weight",
            "unfrozen": "0.bias",
            "assigned": "0.weight, 2.weight, 2.bias",
        }.items():
            assert f"added or replaced: {parameters}. Their" in said[name], name
            assert "xmp.data_parallel(model.module)" in said[name]
        assert said["frozen"].startswith("parameters were frozen, or taken out of the model")


def wraps_again(rank: int) -> Any:
    xmp.init_process_group()
    x = inputs(rank)
    model = xmp.data_parallel(net())
    model(x).sum().backward()
    gone = weakref.ref(model), weakref.ref(model._watch)
    weight = model.module[0].weight
    model = xmp.data_parallel(model.module)
    gc.collect()
    left = [each() is None for each in gone], len(weight._post_accumulate_grad_hooks)
    model.zero_grad()
    model(x).sum().backward()
    return left, are_equal(model.module), model.module[0].weight is weight


def test_a_wrapper_that_is_replaced_leaves_nothing_at_the_model(
    found: dict[str, list[Any]],
) -> None:
    for left, averaged, same in found["wraps_again"]:
        assert left == ([True, True], 1)
        assert averaged
        assert same
