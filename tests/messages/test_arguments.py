"""What a function may be, what it may be given, and which process owns it."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xmp
from tests.support.launching import METHODS, launch, who_by_reference
from tests.support.waiting import until

BESIDE_FORK = pytest.mark.parametrize("start", ["forkserver", "spawn"])
GREETING = "hello"
COUNTS = {"calls": 0}


class Trainer:
    def __init__(self, base: int) -> None:
        self.base = base

    def step(self, rank: int, add: int = 0) -> int:
        return self.base + rank + add

    @classmethod
    def make(cls, rank: int) -> str:
        return f"{cls.__name__} {rank}"

    @staticmethod
    def plain(rank: int) -> int:
        return -rank

    def __call__(self, rank: int) -> int:
        return self.base * 100 + rank


def twice(fn: Any) -> Any:
    @functools.wraps(fn)
    def both(*args: Any, **kwargs: Any) -> Any:
        return [fn(*args, **kwargs), fn(*args, **kwargs)]

    return both


@twice
def decorated(rank: int) -> int:
    return rank


def uses_globals(rank: int) -> Any:
    COUNTS["calls"] += 1
    return GREETING, COUNTS["calls"], helper(rank)


def helper(rank: int) -> int:
    return rank if rank == 0 else helper(rank - 1) + 1


# --- functions ---------------------------------------------------------------------------------


def calls_all(rank: int, calls: list[tuple[Any, tuple[Any, ...]]]) -> list[Any]:
    return [fn(rank, *args) for fn, args in calls]


@pytest.mark.each_method
def test_functions_of_every_kind(method: str) -> None:
    """Each is the function of a launch, where the other methods have all of them in one launch."""
    base = 5

    def local(rank: int) -> int:
        return base + rank

    trainer = Trainer(7)
    cases = [
        (local, (), [5, 6]),
        (lambda rank, x: (rank, x), ("y",), [(0, "y"), (1, "y")]),
        (functools.partial(trainer.step, add=10), (), [17, 18]),
        (trainer.step, (1,), [8, 9]),
        (Trainer.make, (), ["Trainer 0", "Trainer 1"]),
        (Trainer.plain, (), [0, -1]),
        (trainer, (), [700, 701]),
        (decorated, (), [[0, 0], [1, 1]]),
        (uses_globals, (), [("hello", 1, 0), ("hello", 1, 1)]),
        (str, (), ["0", "1"]),
        (max, (1,), [1, 1]),
    ]
    if method != METHODS[0]:
        found = launch(method, calls_all, [(fn, args) for fn, args, _ in cases])
        assert list(zip(*found)) == [tuple(expected) for _, _, expected in cases]
        return
    for fn, args, expected in cases:
        assert list(launch(method, fn, *args)) == expected, fn
    assert COUNTS["calls"] == 0, "a replica's globals are its own"


@pytest.mark.each_method
def test_closures_with_cells_and_defaults(method: str) -> None:
    cell = [1]

    def outer(rank: int, *, more: list[int] = cell) -> Any:
        nonlocal_value = []

        def inner() -> None:
            nonlocal_value.append(rank)
            cell.append(rank)

        inner()
        return nonlocal_value, cell, more is cell

    for rank, value in enumerate(launch(method, outer)):
        assert value == ([rank], [1, rank], True)
    assert cell == [1]


def test_keyword_arguments(method: str) -> None:
    def fn(rank: int, a: int, *rest: int, key: str, **more: Any) -> Any:
        return rank, a, rest, key, more

    got = launch(method, fn, 1, 2, 3, kwargs={"key": "k", "z": [1]})
    assert list(got) == [(rank, 1, (2, 3), "k", {"z": [1]}) for rank in range(2)]


def test_arguments_may_be_a_list(method: str) -> None:
    results = xmp.spawn(who_by_reference, [1, "b"], 2, start_method=method, runtime="cpu")
    assert [each[2] for each in results] == [(1, "b")] * 2


def test_identity_between_function_and_arguments(method: str) -> None:
    shared = [0]

    def fn(rank: int, one: Any, two: Any) -> bool:
        return one is two and one is shared

    assert list(launch(method, fn, shared, shared)) == [True, True]


def test_what_a_replica_changes_stays_with_it(method: str) -> None:
    data = {"seen": []}

    def fn(rank: int, data: dict[str, list[int]]) -> list[int]:
        data["seen"].append(rank)
        return data["seen"]

    assert list(launch(method, fn, data)) == [[0], [1]]
    assert data == {"seen": []}


@pytest.mark.each_method
def test_big_arrays_are_private(method: str, tmp_path: Path) -> None:
    array = np.zeros(1 << 20)

    def fn(rank: int, array: Any) -> float:
        array += rank + 1  # writable, and the replica's own
        (tmp_path / str(rank)).touch()
        until(lambda: len(os.listdir(tmp_path)) == 2)  # both have written
        return float(array.sum())

    assert list(launch(method, fn, array)) == [float(1 << 20), float(2 << 20)]
    assert not array.any()


class Counted:
    made = 0

    def __getstate__(self) -> dict[str, Any]:
        type(self).made += 1
        return {"x": 1}


def test_arguments_are_pickled_once(method: str) -> None:
    Counted.made = 0
    launch(method, lambda rank, each: each.x, Counted(), nprocs=4) if method != "fork" else None
    assert Counted.made <= 1
