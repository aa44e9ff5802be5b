"""``DataParallel`` of ``xmp.compat.paddle`` for models of torch."""

from __future__ import annotations

import copy
import functools
import inspect
import io
from typing import Any

import pytest

import xmp
import xmp.compat.paddle as dist
from tests.support.frameworks import ddp_replicas, together
from tests.support.lazily import lazily

torch = lazily("torch")


@functools.lru_cache
def batch() -> Any:
    return torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(12, 4)


ALONE = "data_parallel in a world of one averages nothing"


def net() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
    return torch.nn.Sequential(*layers).double()


def loss_of(model: Any, part: Any) -> Any:
    return (model(part) - part.sum(1, keepdim=True)).square().mean()


def grads(model: Any) -> list[Any]:
    return [p.grad.flatten().tolist() for p in model.parameters()]


def alone(model: Any) -> Any:
    with pytest.warns(RuntimeWarning, match=ALONE):
        return dist.DataParallel(model)


# --- gradients ------------------------------------------------------------------------------------


def train(rank: int) -> dict[str, Any]:
    dist.init_parallel_env()
    model = net()
    with torch.no_grad():
        model[0].weight += rank  # it gets the values of rank 0
    wrapped = dist.DataParallel(model, comm_buffer_size=1, last_comm_buffer_size=0.5)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    mine = batch()[rank::2]
    found: dict[str, Any] = {}
    for step in range(3):
        optimizer.zero_grad()
        if step == 2:
            with wrapped.no_sync():
                loss_of(wrapped, mine[:3]).backward()
                found["local"] = grads(model)
            loss_of(wrapped, mine[3:]).backward()
        else:
            loss_of(wrapped, mine).backward()
        found[f"step {step}"] = grads(model)
        optimizer.step()
    found["kinds"] = [isinstance(wrapped, kind) for kind in (dist.DataParallel, torch.nn.Module)]
    found["is"] = wrapped._layers is model
    found["names"] = [*wrapped.state_dict()]
    return found


def whole_batches() -> list[Any]:
    """The gradients of the same three steps in one process."""
    model, found = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        parts = [batch()] if step < 2 else [batch()[:6], batch()[6:]]  # two parts: their sum
        for part in parts:
            loss_of(model, part).backward()
        found.append(grads(model))
        optimizer.step()
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each function returns in two replicas; one launch for all."""
    return together(ddp_replicas, train, left_out, changes)


def test_gradients_are_those_of_the_whole_batch(found: dict[str, list[Any]]) -> None:
    first, second = found["train"]
    for step, expected in enumerate(whole_batches()):
        for each in (first, second):
            for ours, alone in zip(each[f"step {step}"], expected, strict=True):
                assert ours == pytest.approx(alone, rel=0, abs=1e-10)
    assert first["local"] != second["local"]
    assert first["kinds"] == [True, True]
    assert first["is"]
    assert first["names"] == [*net().state_dict()]


def left_out(rank: int) -> dict[str, Any]:
    group = dist.init_parallel_env()
    model = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.zeros(1)) for n in "abc"})
    model["a"].no_sync = True  # of the root module, and
    model["c"].requires_grad_(False)
    root = torch.nn.Module()
    root.inner, root.own = model, torch.nn.Parameter(torch.full((1,), float(rank)))
    root.own.no_sync = True
    root.forward = lambda: root.own * (1 + rank) + model["a"] * (1 + rank) + model["b"] * (1 + rank)
    wrapped = dist.DataParallel(root, group=group)
    wrapped().sum().backward()
    found = {
        "value": root.own.item(),
        "left out": [root.own.grad.item(), model["a"].grad.item()],
        "averaged": model["b"].grad.item(),
        "later": of_another_wrapper(root),
    }
    with pytest.raises(xmp.PlanError, match="the model is wrapped already, by DataParallel"):
        dist.DataParallel(wrapped)
    return found


def of_another_wrapper(root: Any) -> float:
    """The gradient of a marked parameter when the model is wrapped again, for its first rank."""
    root.zero_grad()
    dist.DataParallel(root)().sum().backward()
    return float(root.own.grad.item())


def test_parameters_with_no_sync_are_left_out(found: dict[str, list[Any]]) -> None:
    assert found["left_out"] == [
        {"value": rank, "left out": [rank + 1.0] * 2, "averaged": 1.5, "later": rank + 1.0}
        for rank in (0, 1)
    ]


# --- without others -------------------------------------------------------------------------------


def test_in_a_world_of_one_it_is_the_model() -> None:
    model = net()
    wrapped = alone(model)
    loss_of(wrapped, batch()).backward()
    with wrapped.no_sync():
        assert wrapped(batch()).equal(model(batch()))
    assert wrapped.eval().training is model.training is False
    assert pickled(wrapped)(batch()).equal(copy.deepcopy(wrapped)(batch()))
    assert not isinstance(model, dist.DataParallel)


def pickled(module: Any) -> Any:
    box = io.BytesIO()
    torch.save(module, box)
    box.seek(0)
    return torch.load(box, weights_only=False)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("set_state_dict", r"call load_state_dict\(state\)"),
        ("set_dict", r"call load_state_dict\(state\)"),
        ("load_dict", r"call load_state_dict\(state\)"),
        ("scale_loss", "use the loss as it is: backward averages the gradients"),
        ("apply_collective_grads", "remove the call: backward averages the gradients"),
    ],
)
def test_paddles_methods_say_what_torch_has(name: str, instead: str) -> None:
    wrapped = alone(torch.nn.Linear(1, 1))
    with pytest.raises(AttributeError, match=rf"^{name}\(\) is Paddle's. .* torch, {instead}"):
        getattr(wrapped, name)(3.5)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"strategy": object()}, xmp.PlanError, "which has deprecated it: leave it out"),
        ({"comm_buffer_size": 0}, xmp.PlanError, "^comm_buffer_size=0: give a number of MiB"),
        ({"last_comm_buffer_size": "1"}, TypeError, "^last_comm_buffer_size must be a number of"),
        ({"layers": "model"}, TypeError, "DataParallel takes a torch.nn.Module or a paddle"),
        ({"layers": object}, TypeError, "or a paddle.nn.Layer, not type"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        dist.DataParallel(**{"layers": torch.nn.Linear(1, 1), **options})


def test_a_model_of_torchs_where_paddle_connects_the_trainers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xmp.plugins.paddle._data_parallel.paddle_runs", lambda: True)
    with pytest.raises(xmp.PlanError, match="the model is torch's, and Paddle connects"):
        dist.DataParallel(torch.nn.Linear(1, 1))


def test_it_is_no_base_class() -> None:
    with pytest.raises(TypeError, match="is no base class: derive from"):
        type("Mine", (dist.DataParallel,), {})
    assert [*inspect.signature(dist.DataParallel).parameters][:2] == ["layers", "strategy"]


def changes(rank: int) -> str:
    dist.init_parallel_env()
    model = dist.DataParallel(net())
    model._layers.append(torch.nn.Linear(1, 1).double())
    with pytest.raises(RuntimeError) as caught:
        loss_of(model, batch())
    loss_of(dist.DataParallel(model._layers), batch()).backward()  # as the error says
    return str(caught.value)


def test_an_error_about_changed_parameters_says_how_to_wrap_again_here(
    found: dict[str, list[Any]],
) -> None:
    for text in found["changes"]:
        assert "wrap the model again, DataParallel(model._layers) (and" in text
        assert "xmp.data_parallel(" not in text
