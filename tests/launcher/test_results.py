"""What replicas return, in rank order, as it was."""

from __future__ import annotations

import atexit
import collections
import dataclasses
import datetime
import enum
import gc
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import xmp
from tests.support.launching import launch, who_by_reference
from tests.support.stage import Script
from tests.support.waiting import until


@dataclasses.dataclass
class Score:
    rank: int
    value: float


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


class Pair(NamedTuple):
    left: int
    right: int


def test_results_come_in_rank_order(method: str, tmp_path: Path) -> None:
    def fn(rank: int) -> int:
        (tmp_path / str(rank)).symlink_to(f"/proc/{os.getpid()}")
        after = tmp_path / str(rank + 1)
        until(lambda: rank == 3 or (after.is_symlink() and not after.exists()))  # it has ended
        return rank * 10

    results = launch(method, fn, nprocs=4)
    assert isinstance(results, xmp.Results)
    assert list(results) == [0, 10, 20, 30]


def test_results_are_a_sequence(method: str) -> None:
    results = launch(method, lambda rank: rank * 10, nprocs=3)
    assert isinstance(results, collections.abc.Sequence)
    assert results == [0, 10, 20]
    assert len(results) == 3
    assert results[-1] == 20
    assert list(results[1:]) == [10, 20]
    assert list(reversed(results)) == [20, 10, 0]
    assert results.index(10) == 1
    assert 20 in results
    first, *rest = results
    assert (first, rest) == (0, [10, 20])
    assert "20" in repr(results)
    assert dict(results.by_rank) == {0: 0, 1: 10, 2: 20}
    with pytest.raises(IndexError):
        results[3]


def test_the_timeline_accounts_for_every_start(method: str) -> None:
    before = time.monotonic_ns()
    results = launch(method, lambda rank: time.monotonic_ns(), nprocs=2)
    after = time.monotonic_ns()
    assert set(results.timeline) == {0, 1}
    for rank, line in results.timeline.items():
        assert before <= line.called <= line.entered <= results[rank] <= line.left <= after


def test_values_of_many_kinds(method: str) -> None:
    value = {
        "none": None,
        "text": "grüße \ud83e"[:6],
        "bytes": b"\0\xff" * 5000,
        "set": frozenset({1, 2}),
        "when": datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc),
        "big": 1 << 70,
        "type": dict,
        "deque": collections.deque([1], maxlen=3),
    }
    for each in launch(method, lambda rank: value):
        assert each == value


def test_classes_of_a_test_module_keep_their_identity(method: str) -> None:
    """They travel by value; what comes back is the launcher's class all the same."""

    def fn(rank: int) -> Any:
        return Score(rank, 0.5), Mode.TEST, Pair(1, rank), Score, Mode

    for rank, (score, mode, pair, score_class, mode_class) in enumerate(launch(method, fn)):
        assert isinstance(score, Score)
        assert score == Score(rank, 0.5)
        assert mode is Mode.TEST
        assert isinstance(pair, Pair)
        assert score_class is Score
        assert mode_class is Mode


def test_a_function_comes_back_callable(method: str) -> None:
    def fn(rank: int) -> Any:
        return lambda x: x + rank

    assert [each(10) for each in launch(method, fn)] == [10, 11]


def test_identity_within_one_result_is_kept(method: str) -> None:
    def fn(rank: int) -> Any:
        shared: list[Any] = [rank]
        shared.append(shared)
        return shared, shared

    for one, two in launch(method, fn):
        assert one is two
        assert one[1] is one


def test_arrays_come_back_whole_and_writable(method: str) -> None:
    def fn(rank: int) -> Any:
        big = np.arange(1 << 18, dtype=np.float32).reshape(512, 512) + rank
        return {
            "big": big,
            "turned": big.T,
            "strided": big[::2, ::3],
            "empty": np.empty((0, 3)),
            "scalar": np.float64(1.5),
            "bool": np.ones(5, bool),
            "record": np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
            "object": np.array([None, "x"], dtype=object),
        }

    for rank, each in enumerate(launch(method, fn)):
        big = np.arange(1 << 18, dtype=np.float32).reshape(512, 512) + rank
        np.testing.assert_array_equal(each["big"], big)
        np.testing.assert_array_equal(each["turned"], big.T)
        np.testing.assert_array_equal(each["strided"], big[::2, ::3])
        assert each["empty"].shape == (0, 3)
        assert each["record"].dtype.names == ("a", "b")
        assert list(each["object"]) == [None, "x"]
        for name in ("big", "turned", "strided", "bool", "record"):
            assert each[name].flags.writeable, name
        each["big"] += 1
        assert each["big"][0, 0] == rank + 1


def test_results_of_one_rank_do_not_alias_those_of_another(method: str) -> None:
    shared = np.zeros(1 << 16)
    one, two = launch(method, lambda rank, array: array, shared)
    one[:] = 7
    assert not two.any()
    assert not shared.any()


def test_results_outlive_their_launch(method: str) -> None:
    results = launch(method, lambda rank: np.full(1 << 18, rank))
    del results
    kept = launch(method, lambda rank: np.full(1 << 18, rank))[1]
    launch(method, lambda rank: np.full(1 << 18, 9))
    assert (kept == 1).all()


def test_results_go_with_their_last_user_and_need_no_collection(method: str) -> None:
    gc.disable()
    try:
        results = launch(method, gives_arrays)
        first = weakref.ref(results[0])
        del results
        assert first() is None
    finally:
        gc.enable()


def gives_arrays(rank: int) -> np.ndarray:
    return np.full(100_000, rank)


def test_many_results_of_middle_size(method: str) -> None:
    def fn(rank: int) -> Any:
        return [np.full(5000, rank) for _ in range(300)]

    for rank, arrays in enumerate(launch(method, fn)):
        assert len(arrays) == 300
        assert all((array == rank).all() for array in arrays)


def test_a_function_of_an_importable_module(method: str) -> None:
    results = launch(method, who_by_reference, "a", 2)
    assert [(rank, args) for rank, _, args in results] == [(0, ("a", 2)), (1, ("a", 2))]
    assert len({pid for _, pid, _ in results}) == 2


TORCH = """
import sys
import xmp

def fn(rank):
    import torch
    whole = torch.arange(10.0) + rank
    model = torch.nn.Linear(3, 3)
    model.extra = model.weight
    return {
        "views": (whole[:5], whole[5:]), "whole": whole, "turned": torch.ones(4, 6).t(),
        "model": model, "half": torch.ones(3, dtype=torch.bfloat16), "empty": torch.empty(0, 2),
        "sparse": torch.eye(3).to_sparse(), "grad": torch.ones(2, requires_grad=True),
        "nested": [({"x": torch.zeros(2, 2)},)], "device": torch.device("cpu"), "type": torch.int8,
        "big": torch.zeros(1 << 20),
    }

if __name__ == "__main__":
    import torch
    for rank, got in enumerate(xmp.spawn(fn, nprocs=2, start_method=sys.argv[1], runtime="cpu")):
        assert torch.equal(got["whole"], torch.arange(10.0) + rank)
        left, right = got["views"]
        got["whole"][0] = 99
        got["whole"][9] = 98
        assert left[0] == 99 and right[4] == 98, "views share their storage as they did"
        assert got["turned"].shape == (6, 4) and not got["turned"].is_contiguous()
        assert got["model"].extra is got["model"].weight
        got["model"](torch.ones(1, 3)).sum().backward()
        assert got["half"].dtype is torch.bfloat16 and got["empty"].shape == (0, 2)
        assert torch.equal(got["sparse"].to_dense(), torch.eye(3))
        assert got["grad"].requires_grad and got["grad"].is_leaf
        assert got["type"] is torch.int8 and got["device"].type == "cpu"
        got["nested"][0][0]["x"] += 1
        got["big"] += 1
        assert not got["big"].is_shared(), "private memory, not a segment"
    print("fine")
"""


def test_tensors_come_back_with_their_storages(method: str, script: Script) -> None:
    done = script(TORCH, method)
    assert done.out == "fine\n", done


def leaves_word(rank: int, folder: str) -> None:
    atexit.register(lambda: Path(folder, str(rank)).write_text(str(time.monotonic_ns())))


@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
def test_none_leaves_before_all_have_been_made(start_method: str, tmp_path: Path) -> None:
    """What ends would take the cores from what starts; up to 16 replicas are made in one batch."""
    account = launch(start_method, leaves_word, str(tmp_path), nprocs=16).timeline
    first = min(int(word.read_text()) for word in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 16
    assert first > max(account[rank].forked for rank in range(16))


released = threading.Event()


def wait_until_released() -> None:
    released.wait(60)


class LoadsSlowly:
    def __reduce__(self) -> Any:
        return wait_until_released, ()


def test_a_result_that_loads_for_too_long_is_named_with_the_place() -> None:
    def loads(rank: int) -> LoadsSlowly:
        return LoadsSlowly()

    with pytest.raises(xmp.ReplicaTimeout, match="rank 0's result is still being loaded") as caught:
        xmp.spawn(loads, nprocs=2, runtime="cpu", timeout=2)
    released.set()
    assert "in wait_until_released" in str(caught.value)


def gives_a_lock(rank: int) -> str:
    try:
        return f"returned {xmp.once_per_host(threading.Lock)!r}"
    except RuntimeError as error:
        return f"raised {error}"


def test_a_shared_value_that_cannot_be_sent() -> None:
    first, second = xmp.spawn(gives_a_lock, nprocs=2, runtime="cpu")
    assert first.startswith("returned <unlocked")
    assert second.startswith("raised once_per_host/0/0: <unlocked")
    assert "cannot be sent to the other replicas" in second
