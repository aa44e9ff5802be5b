"""MpModelWrapper and MpSerialExecutor: one turn and one set of weights under every start method."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xmp
from tests.support.launching import METHODS
from tests.support.lazily import lazily
from xmp import _inside
from xmp._inside.sharing import MpModelWrapper, MpSerialExecutor
from xmp._words.replica_info import ReplicaInfo

torch = lazily("torch")


class Recorder:
    """A supervisor's channel that has one replica's values already."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values = values or {}
        self.turns: list[str] = []
        self.inside = False

    def share(self, key: str, make: Callable[[], Any], owner: int | None = None) -> Any:
        assert not self.inside, "weights are shared before the turn"
        if key not in self.values:
            self.values[key] = pickle.dumps(make())
        return pickle.loads(self.values[key])

    @contextmanager
    def turn(self, key: str) -> Iterator[None]:
        self.turns.append(key)
        self.inside = True
        yield
        self.inside = False


@contextmanager
def replica(channel: Recorder) -> Iterator[None]:
    _inside.install(ReplicaInfo(1, 1, 2, 2, runtime="cpu"), None, channel)
    try:
        yield
    finally:
        _inside.uninstall()


# --- outside, and the objects alone ------------------------------------------------------------


def test_outside_a_replica_both_simply_work() -> None:
    assert MpSerialExecutor().run(lambda: 5) == 5
    model = torch.nn.Linear(2, 3)
    assert MpModelWrapper(model).to("cpu") is model


def test_an_executor_passes_its_exception_on_and_ends_its_turn() -> None:
    channel = Recorder()
    executor = MpSerialExecutor()
    with replica(channel):
        with pytest.raises(ZeroDivisionError):
            executor.run(lambda: 1 // 0)
        assert executor.run(lambda: 3) == 3
    assert len(set(channel.turns)) == 1


def test_objects_made_at_different_places_have_different_keys() -> None:
    made = [MpSerialExecutor() for _ in range(2)]
    keys = {each._key for each in [*made, MpSerialExecutor()]} | {MpModelWrapper(None)._key}
    assert len(keys) == 4


def test_pickling_keeps_the_key_and_the_weights() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        wrapper = MpModelWrapper(torch.nn.Linear(300, 300))
        arrived = pickle.loads(pickle.dumps(wrapper, protocol))
        assert arrived._key == wrapper._key
        assert torch.equal(arrived._model.weight, wrapper._model.weight)
        assert isinstance(arrived._model.weight, torch.nn.Parameter)
    assert copy.deepcopy(wrapper)._key == wrapper._key
    executor = MpSerialExecutor()
    assert pickle.loads(pickle.dumps(executor))._key == executor._key


def test_a_wrapped_model_is_never_put_in_shared_memory() -> None:
    """As an argument it passes torch's own pickler, which would share a bare tensor."""
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # registers with it

    wrapper = MpModelWrapper(torch.nn.Linear(300, 300))
    arrived = pickle.loads(ForkingPickler.dumps(wrapper))
    assert not wrapper._model.weight.is_shared()
    assert not arrived._model.weight.is_shared()
    with torch.no_grad():
        arrived._model.weight += 1
    assert not torch.equal(arrived._model.weight, wrapper._model.weight)


# --- weights that each replica made for itself -------------------------------------------------


def tied() -> Any:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(7, 5)
            self.out = torch.nn.Linear(5, 7, bias=False)
            self.out.weight = self.embedding.weight
            self.norm = torch.nn.BatchNorm1d(5)
            with torch.no_grad():
                self.norm.running_mean += torch.rand(5)

    return Tied()


def wrappers(make: Callable[[], Any]) -> list[MpModelWrapper]:
    """Two replicas' objects of one line of a program."""
    made = [MpModelWrapper(make()) for _ in range(2)]
    made[1]._key = made[0]._key
    return made


def test_the_first_replicas_weights_become_everybodys_in_place() -> None:
    channel = Recorder()
    first, second = wrappers(tied)
    model = second._model
    weight, optimizer = model.out.weight, torch.optim.SGD(model.parameters(), lr=1.0)
    with replica(channel):
        expected = first.to("cpu")
        assert second.to("cpu") is model
    assert model.out.weight is weight is model.embedding.weight
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    model.out.weight.grad = torch.ones(7, 5)  # backward() would leave threads in this process
    optimizer.step()
    assert not torch.equal(model.embedding.weight, expected.embedding.weight)
    assert len(channel.values) == 1


def test_views_of_one_memory_stay_views_of_one_memory() -> None:
    class Views(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.rand(6)
            self.a = torch.nn.Parameter(whole[:3])
            self.b = torch.nn.Parameter(whole[3:])

    first, second = wrappers(Views)
    with replica(Recorder()):
        expected, model = first.to("cpu"), second.to("cpu")
    assert torch.equal(model.a, expected.a)
    assert torch.equal(model.b, expected.b)
    assert model.a.untyped_storage().data_ptr() == model.b.untyped_storage().data_ptr()


def test_another_model_in_another_replica_is_refused_by_name() -> None:
    first = MpModelWrapper(torch.nn.Linear(2, 3))
    second = MpModelWrapper(torch.nn.Linear(2, 4))
    second._key = first._key
    with replica(Recorder()):
        first.to("cpu")
        with pytest.raises(RuntimeError, match="differs from that of the first replica in bias, w"):
            second.to("cpu")


def test_weights_are_exchanged_once() -> None:
    channel = Recorder()
    (first, _) = wrappers(lambda: torch.nn.Linear(2, 3))
    with replica(channel):
        model = first.to("cpu")
        with torch.no_grad():
            model.weight += 1
        trained = model.weight.clone()
        assert torch.equal(first.to("cpu").weight, trained)
    assert len(channel.turns) == 2


def test_what_arrived_has_everybodys_weights_already() -> None:
    channel = Recorder()
    arrived = pickle.loads(pickle.dumps(MpModelWrapper(torch.nn.Linear(2, 3))))
    with replica(channel):
        arrived.to("cpu")
    assert channel.values == {}


def tree_of_arrays(rank: int) -> Any:
    import jax

    made = xmp.MpModelWrapper({"w": np.random.rand(3), "b": [np.zeros(2) + rank]})
    params = made.to(xmp.device())
    assert params["w"].devices() == {xmp.device()}
    return jax.tree.map(np.asarray, params)


def test_a_tree_of_arrays_goes_to_a_jax_device() -> None:
    first, second = xmp.spawn(tree_of_arrays, nprocs=2, runtime="jax")
    np.testing.assert_array_equal(first["w"], second["w"])
    np.testing.assert_array_equal(first["b"], second["b"])


def test_what_cannot_be_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with pytest.raises(TypeError, match=r"holds a dict, which has no \.to\(device\)"):
        MpModelWrapper({"w": np.ones(2)}).to("cpu")


# --- in real replicas --------------------------------------------------------------------------

SCRIPT = '''
import json, os, sys, time
import torch
import xmp

MODEL = xmp.MpModelWrapper(torch.nn.Linear(400, 400).requires_grad_(False))
OTHER = xmp.MpModelWrapper(torch.nn.Linear(2, 2))
SERIAL = xmp.MpSerialExecutor()


def alone(path):
    """No other replica has its turn: the file exists for one at a time."""
    with open(path, "x"):
        time.sleep(0.05)
    os.unlink(path)
    return os.getpid()


def fn(rank, path, argument):
    pid = SERIAL.run(lambda: alone(path))
    model = MODEL.to(xmp.device())
    before = float(model.weight.double().sum())
    model.weight += rank
    xmp.barrier()
    after = float(model.weight.double().mean())
    passed = argument.to("cpu")
    passed.weight += rank
    xmp.barrier()
    made = xmp.once_per_host(lambda: os.getpid())
    try:
        xmp.once_per_host(lambda: {}["missing"])
    except KeyError as error:
        raised = str(error)
    inside = xmp.MpModelWrapper(torch.nn.Linear(3, 3)).to("cpu")  # each replica makes its own
    return [
        pid == os.getpid(), before, after - rank, float(passed.weight.double().mean()) - rank,
        float(OTHER.to("cpu").weight.sum()), made, raised, float(inside.weight.sum()),
    ]


if __name__ == "__main__":
    argument = xmp.MpModelWrapper(torch.nn.Linear(300, 300).requires_grad_(False))
    results = xmp.spawn(
        fn, (sys.argv[2], argument), nprocs=3, runtime="cpu", start_method=sys.argv[1]
    )
    print(json.dumps(list(results)))
'''


@pytest.mark.parametrize("method", METHODS)
def test_one_turn_and_one_set_of_weights_in_a_script(method: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), method, str(tmp_path / "inside")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert [each[0] for each in results] == [True] * 3
    for column in (1, 4, 5, 6, 7):  # the same in all replicas
        assert len({each[column] for each in results}) == 1, (column, results)
    for column in (2, 3):  # one replica does not see what another adds
        values = [each[column] for each in results]
        assert max(values) - min(values) < 1e-3, (column, results)
    assert results[0][6] == "'missing'"
