"""What cannot be pickled is named by its path, and no frame of xmp's is shown with it."""

from __future__ import annotations

import collections
import functools
import threading
import traceback
from typing import Any

import pytest

import xmp
from tests.support.launching import failure, launch
from tests.support.lazily import lazily
from tests.support.stage import Script

torch = lazily("torch")

LOCK = threading.Lock()
Pair = collections.namedtuple("Pair", "first second")


class Thing:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class Slotted:
    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Refuses:
    def __reduce__(self) -> Any:
        raise ValueError("not this one")


def fn(rank: int, *args: Any, **kwargs: Any) -> int:
    return rank


def captures() -> Any:
    captured = {"deep": [1, LOCK]}

    def inner(rank: int) -> Any:
        return captured

    return inner


def cycle() -> list[Any]:
    found: list[Any] = [LOCK]
    found.insert(0, found)
    return found


def refers_back() -> Any:
    """As Lightning's Trainer: its first part can be pickled no more than it, which it refers to."""
    owner = Thing()
    owner.helpers = [Thing(owner=owner)]
    owner.callbacks = [Thing(owner=owner, kept={"lock": LOCK})]
    return owner


def nested() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def module() -> Any:
    made = torch.nn.Sequential(torch.nn.Identity())  # a tensor would become shared memory
    made.extra = lambda x: LOCK  # type: ignore[assignment]
    return made


UNSENDABLE: list[tuple[Any, str]] = [
    (Thing(cfg={"lock": LOCK}), "args[0].cfg['lock'] (lock)"),
    ([1, Pair(0, Slotted(LOCK))], "args[0][1].second.inside (lock)"),
    ({"a": collections.defaultdict(list, b=[LOCK])}, "args[0]['a']['b'][0] (lock)"),
    (collections.deque([1, LOCK]), "args[0][1] (lock)"),
    ([{LOCK}], "args[0][0], an element (lock)"),
    ({LOCK: 1}, "args[0], its key <unlocked _thread.lock"),
    (functools.partial(fn, Thing(x=LOCK)), "args[0].args[0].x (lock)"),
    (functools.partial(fn, x=LOCK), "args[0].keywords['x'] (lock)"),
    (lambda: LOCK, "args[0]'s global LOCK (lock)"),
    (lambda x=LOCK: x, "args[0]'s default of x (lock)"),
    (Thing(x=LOCK).__init__, "args[0].__self__.x (lock)"),
    (cycle(), "args[0][1] (lock)"),
    (refers_back(), "args[0].callbacks[0].kept['lock'] (lock)"),
    (nested(), "args[0] (list)"),
    (module, "args[0].extra's global LOCK (lock)"),
    (i for i in ()),
]
UNSENDABLE[-1] = (UNSENDABLE[-1], "args[0] (generator)")  # type: ignore[assignment]


@pytest.mark.parametrize(("value", "path"), UNSENDABLE, ids=[path for _, path in UNSENDABLE])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_an_argument_is_named_by_its_path(value: Any, path: str, method: str) -> None:
    value = module() if value is module else value  # torch is not loaded to collect this
    with pytest.raises(TypeError, match="cannot be sent to the replicas") as caught:
        launch(method, fn, value)
    assert str(caught.value).startswith(path)
    assert caught.value.__cause__ is None


def test_keywords_and_functions_are_named_too() -> None:
    with pytest.raises(TypeError, match=r"^kwargs\['x'\]\.y \(lock\) cannot be sent"):
        xmp.spawn(fn, nprocs=2, runtime="cpu", kwargs={"x": Thing(y=LOCK)})
    with pytest.raises(TypeError, match=r"^fn's variable captured\['deep'\]\[1\] \(lock\)"):
        xmp.spawn(captures(), nprocs=2, runtime="cpu")


def test_an_error_of_the_users_own_code_keeps_its_frames() -> None:
    with pytest.raises(
        TypeError, match=r"args\[0\]\.x\[0\] \(Refuses\) .*: not this one"
    ) as caught:
        xmp.spawn(fn, (Thing(x=[Refuses()]),), nprocs=2, runtime="cpu")
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert [f.name for f in traceback.extract_tb(cause.__traceback__)] == ["__reduce__"]


PROGRAM = """
import threading, xmp

def fn(rank, cfg):
    pass

if __name__ == "__main__":
    xmp.spawn(fn, ({"lock": threading.Lock()},), nprocs=2, runtime="cpu")
"""


def test_what_is_printed_shows_the_call_and_one_frame_of_xmp(script: Script) -> None:
    lines = script(PROGRAM).err.splitlines()
    assert lines[-1].startswith("TypeError: args[0]['lock'] (lock) cannot be sent to the replicas")
    frames = [line for line in lines if line.lstrip().startswith("File ")]
    assert len(frames) == 2, lines  # the caller's, and `in spawn`
    assert "train.py" in frames[0]


@pytest.mark.failing
def test_a_result_is_named_by_its_path(method: str) -> None:
    def returns_a_lock(rank: int) -> Any:
        return {"a": [Thing(x=LOCK_OF_REPLICA())]}

    error = failure(method, returns_a_lock)
    assert "the result['a'][0].x (lock) cannot be sent back" in str(error)


LOCK_OF_REPLICA = threading.Lock
