"""Errors and handles of xmp that are pickled or copied, as Ray and process pools do."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

import xmp
from tests.support.launching import failure, launch, never_returns
from tests.support.lazily import lazily
from tests.support.stage import Script

torch_mp = lazily("torch.multiprocessing")

pytestmark = pytest.mark.failing

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "cloudpickle": lambda error: pickle.loads(cloudpickle.dumps(error)),
    "twice": lambda error: pickle.loads(pickle.dumps(copy.deepcopy(error))),
}


class Awkward(ValueError):
    """Does not unpickle by itself."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


class Touchy(Exception):
    """Like an array of several numbers, it is neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def raises_what_has_no_truth(rank: int) -> None:
    raise ValueError("no such label") from Touchy("why")


def raises(rank: int) -> int:
    if rank == 1:
        raise Awkward(reason="no such label") from KeyError("label")
    return rank


def dies(rank: int) -> None:
    if rank == 1:
        os._exit(3)


@pytest.fixture(scope="module")
def torchs_classes() -> tuple[type[Exception], type[Exception]]:
    """Loads torch: an error that was made before has none of them."""
    return torch_mp.ProcessRaisedException, torch_mp.ProcessExitedException


@pytest.fixture(scope="module")
def raised(torchs_classes: object) -> xmp.ReplicaError:
    return failure("forkserver", raises)


@pytest.fixture(scope="module")
def died(torchs_classes: object) -> xmp.ReplicaError:
    return failure("forkserver", dies)


@pytest.mark.parametrize("way", WAYS)
def test_torchs_classes_catch_it_still(
    way: str,
    raised: xmp.ReplicaError,
    died: xmp.ReplicaError,
    torchs_classes: tuple[type[Exception], type[Exception]],
) -> None:
    for error, torchs in zip((raised, died), torchs_classes, strict=True):
        other = WAYS[way](error)
        assert other is not error
        assert type(other) is type(error)
        with pytest.raises(torchs):
            raise other
        assert other.msg == str(other) == str(error) == error.msg
        assert (other.error_index, other.error_pid) == (1, error.pid)
        assert other.exit_code == error.exit_code
        assert [each.what for each in other.failures] == [each.what for each in error.failures]
        assert dict(other.results) == dict(error.results)
        assert repr(other.__cause__) == repr(error.__cause__)


WITHOUT_TORCH = """
import pickle, sys
import xmp

def fn(rank):
    if rank == 1:
        raise ValueError("no such label")

if __name__ == "__main__":
    try:
        xmp.spawn(fn, nprocs=2, runtime="cpu")
    except xmp.ReplicaRaised as error:
        data = pickle.dumps(error)
    assert "torch" not in sys.modules
    import torch.multiprocessing as torch_mp
    assert "torch.multiprocessing.spawn" in sys.modules
    try:
        raise pickle.loads(data)
    except torch_mp.ProcessRaisedException as error:
        print(error.msg.splitlines()[0], repr(error.__cause__))
"""


def test_where_torch_came_later(script: Script) -> None:
    done = script(WITHOUT_TORCH)
    assert done.code == 0, done.err
    assert "raised ValueError: no such label" in done.out


def waits(rank: int) -> None:
    never_returns()


@pytest.fixture(scope="module")
def late() -> xmp.ReplicaTimeout:
    with pytest.raises(xmp.ReplicaTimeout) as caught:
        launch("forkserver", waits, timeout=2)
    return caught.value


@pytest.mark.parametrize("way", WAYS)
def test_a_time_out(way: str, late: xmp.ReplicaTimeout) -> None:
    other = WAYS[way](late)
    assert type(other) is xmp.ReplicaTimeout
    assert isinstance(other, TimeoutError)
    assert str(other) == str(late)
    assert other.stacks == late.stacks


@pytest.mark.parametrize("way", WAYS)
def test_other_errors(way: str) -> None:
    error = xmp.PlanError("nprocs=9: give 8")
    error.history = [ValueError("first")]
    other = WAYS[way](error)
    assert type(other) is xmp.PlanError
    assert str(other) == str(error)
    assert repr(other.history) == repr(error.history)


def test_a_context_stays_where_it_is() -> None:
    with launch("forkserver", waits, join=False) as context:
        for way in WAYS.values():
            with pytest.raises(TypeError, match="a ProcessContext cannot be pickled or copied"):
                way(context)


@pytest.fixture(scope="module")
def touchy() -> list[xmp.ReplicaError]:
    return [failure("forkserver", fn) for fn in (raises_what_has_no_truth, raises_touchy)]


@pytest.mark.parametrize("way", WAYS)
def test_a_cause_without_a_truth_value(way: str, touchy: list[xmp.ReplicaError]) -> None:
    for given in touchy:
        error = WAYS[way](given)
        assert isinstance(error, xmp.ReplicaRaised)
        assert error.__cause__ is not None
    assert isinstance(error.__cause__, Touchy)


def raises_touchy(rank: int) -> None:
    raise Touchy("no such label")
