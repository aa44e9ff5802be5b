"""``DataParallel`` of ``xmp.compat.paddle`` for models of torch."""

from __future__ import annotations

import copy
import inspect
import io
from typing import Any

import pytest
import torch

import xmp
import xmp.compat.paddle as dist
from tests.support.launching import launch

BATCH = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(12, 4)
IGNORED = "_ddp_params_and_buffers_to_ignore"
ALONE = "averages nothing: this process is the only trainer"


def net() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)
    return torch.nn.Sequential(*layers).double()


def loss_of(model: Any, part: Any) -> Any:
    return (model(part) - part.sum(1, keepdim=True)).square().mean()


def grads(model: Any) -> list[Any]:
    return [p.grad.flatten().tolist() for p in model.parameters()]


def alone(model: Any) -> Any:
    with pytest.warns(UserWarning, match=ALONE):
        return dist.DataParallel(model)


# --- gradients ------------------------------------------------------------------------------------


def train(rank: int) -> dict[str, Any]:
    dist.init_parallel_env()
    model = net()
    with torch.no_grad():
        model[0].weight += rank  # it gets the values of rank 0
    wrapped = dist.DataParallel(model, comm_buffer_size=1, last_comm_buffer_size=0.5)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    mine = BATCH[rank::2]
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
    found["sizes"] = [wrapped.comm_buffer_size, wrapped.last_comm_buffer_size]
    found["names"] = [name for name, _ in wrapped.named_parameters()]
    return found


def whole_batches() -> list[Any]:
    """The gradients of the same three steps in one process."""
    model, found = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        parts = [BATCH] if step < 2 else [BATCH[:6], BATCH[6:]]  # two parts: their sum
        for part in parts:
            loss_of(model, part).backward()
        found.append(grads(model))
        optimizer.step()
    return found


def test_gradients_are_those_of_the_whole_batch() -> None:
    first, second = launch("forkserver", train)
    for step, expected in enumerate(whole_batches()):
        for each in (first, second):
            for ours, alone in zip(each[f"step {step}"], expected, strict=True):
                assert ours == pytest.approx(alone, rel=0, abs=1e-10)
    assert first["local"] != second["local"]
    assert first["kinds"] == [True, True]
    assert first["sizes"] == [2**20, 2**19]
    assert first["names"][0] == "_layers.0.weight"


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
        "later": of_another_wrapper(root, wrapped),
    }
    for each in root.parameters():
        each.no_sync = True
    with pytest.raises(xmp.PlanError, match="no parameter of the model is to be averaged"):
        dist.DataParallel(root)
    with pytest.raises(xmp.PlanError, match="is wrapped by DataParallel already"):
        dist.DataParallel(wrapped)
    return found


def of_another_wrapper(root: Any, wrapped: Any) -> list[list[float]]:
    """Gradients of the model and of a copy under ``xmp.data_parallel``, which leaves none out."""
    copied = copy.deepcopy(wrapped)  # it is the model alone
    assert not hasattr(copied.own, "no_sync")
    assert not hasattr(copied, IGNORED)
    root.__dict__[IGNORED] = ["inner.a"]  # another one's, which stays
    dist.DataParallel(root)
    assert root.__dict__.pop(IGNORED) == ["inner.a"]
    found = []
    for each in (root, copied):
        each.zero_grad()
        own, inner = each.own, each.inner
        scale = 1 + xmp.rank()
        again = xmp.data_parallel(each)
        each.forward = lambda own=own, a=inner["a"], b=inner["b"], s=scale: (own + a + b) * s
        again().sum().backward()
        found.append([own.grad.item(), inner["a"].grad.item()])
    return found


def test_parameters_with_no_sync_are_left_out() -> None:
    found = list(launch("forkserver", left_out))
    assert found == [
        {"value": rank, "left out": [rank + 1.0] * 2, "averaged": 1.5, "later": [[1.5] * 2] * 2}
        for rank in (0, 1)
    ]


# --- without others -------------------------------------------------------------------------------


def test_in_a_world_of_one_it_is_the_model() -> None:
    model = net()
    wrapped = alone(model)
    loss_of(wrapped, BATCH).backward()
    with wrapped.no_sync():
        assert wrapped(BATCH).equal(model(BATCH))
    assert wrapped.eval().training is model.training is False
    assert pickled(wrapped)(BATCH).equal(copy.deepcopy(wrapped)(BATCH))
    assert not isinstance(model, dist.DataParallel)


def pickled(module: Any) -> Any:
    box = io.BytesIO()
    torch.save(module, box)
    box.seek(0)
    return torch.load(box, weights_only=False)


def test_what_paddle_has_deprecated_does_nothing() -> None:
    wrapped = alone(torch.nn.Linear(1, 1))
    with pytest.warns(DeprecationWarning, match=r"scale_loss\(\) does nothing"):
        assert wrapped.scale_loss(3.5) == 3.5
    with pytest.warns(DeprecationWarning, match=r"apply_collective_grads\(\) does nothing"):
        assert wrapped.apply_collective_grads() is None
    with pytest.warns(DeprecationWarning, match="stat_dict= is deprecated"):
        wrapped.set_dict(stat_dict=wrapped.state_dict())


def test_state_has_the_models_own_names() -> None:
    model = net()
    wrapped = alone(model)
    assert list(wrapped.state_dict()) == list(model.state_dict())
    destination: dict[str, Any] = {"other": 1}
    found = wrapped.state_dict(destination, structured_name_prefix="net.")
    assert found is destination
    assert list(found)[:2] == ["other", "net.0.weight"]
    assert list(wrapped.state_dict(include_sublayers=False)) == []
    assert list(alone(model[0]).state_dict(None, False, "net.")) == ["net.weight", "net.bias"]
    outer = torch.nn.Sequential(wrapped)
    assert next(iter(outer.state_dict())) == "0._layers.0.weight"
    outer.load_state_dict(outer.state_dict())
    assert not wrapped.load_state_dict(model.state_dict()).missing_keys


def test_a_state_is_set_as_far_as_it_fits() -> None:
    wrapped = alone(torch.nn.Linear(2, 1))
    for name in ("set_state_dict", "set_dict", "load_dict"):
        state = {"weight": torch.ones(1, 2).numpy(), "bias": torch.zeros(1), "another": 1}
        assert getattr(wrapped, name)(state) is None
        assert wrapped._layers.weight.tolist() == [[1.0, 1.0]]
    with pytest.warns(UserWarning, match="leaves (weight|bias) as it is") as caught:
        wrapped.set_state_dict({"weight": torch.ones(2, 1)})
    assert [str(each.message).partition(") ")[2] for each in caught] == [
        "leaves weight as it is: the shape is [2, 1], and must be [1, 2]",
        "leaves bias as it is: it is not in the given dict",
    ]
    assert {each.filename for each in caught} == {__file__}
    with pytest.raises(xmp.PlanError, match="parameters of torch have no names of their own"):
        wrapped.set_state_dict({}, use_structured_name=False)
    with pytest.raises(TypeError, match="state_dict must be a dict, not list"):
        wrapped.set_state_dict([])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"strategy": object()}, xmp.PlanError, "which has deprecated it: leave it out"),
        ({"comm_buffer_size": 0}, xmp.PlanError, "comm_buffer_size=0; give a number of MiB"),
        ({"last_comm_buffer_size": "1"}, TypeError, "last_comm_buffer_size must be a number of"),
        ({"layers": "model"}, TypeError, "DataParallel takes a torch.nn.Module or a paddle"),
        ({"layers": torch.nn.Linear}, TypeError, "or a paddle.nn.Layer, not type"),
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


def test_a_class_derived_from_it_is_a_module_too() -> None:
    class Mine(dist.DataParallel):
        def forward(self, *inputs: Any, **kwargs: Any) -> Any:
            return super().forward(*inputs, **kwargs) + 1

    model = torch.nn.Linear(1, 1)
    with pytest.warns(UserWarning, match=ALONE):
        mine = Mine(model)
    assert isinstance(mine, (Mine, torch.nn.Module))
    assert mine(torch.zeros(1)).equal(model(torch.zeros(1)) + 1)
    assert inspect.getdoc(type(mine)) is not None


def changes(rank: int) -> str:
    dist.init_parallel_env()
    model = dist.DataParallel(net())
    model._layers.append(torch.nn.Linear(1, 1).double())
    with pytest.raises(RuntimeError) as caught:
        loss_of(model, BATCH)
    loss_of(dist.DataParallel(model._layers), BATCH).backward()  # as the error says
    return str(caught.value)


def test_an_error_about_changed_parameters_says_how_to_wrap_again_here() -> None:
    for text in launch("forkserver", changes):
        assert "wrap the model again, DataParallel(model._layers) (and" in text
        assert "xmp.data_parallel(" not in text
