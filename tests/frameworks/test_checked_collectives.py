"""Calls of collectives that differ are refused on all ranks before a wrong number comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xmp
from xmp._inside.joining import described

pytestmark = [pytest.mark.framework, pytest.mark.failing]

RANKS = 3


def outcome(call: Callable[[], Any]) -> str:
    """What a call has come to on this rank, as text."""
    try:
        return f"returned {call()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def lengths_differ(rank: int) -> str:
    return outcome(lambda: xmp.all_reduce(torch.ones(5 if rank == 2 else 4)))


def types_differ(rank: int) -> str:
    dtype = torch.int64 if rank == 1 else torch.float32
    return outcome(lambda: xmp.all_reduce(torch.ones(4, dtype=dtype)))


def structures_differ(rank: int) -> str:
    tree = {"loss": torch.ones(2), **({"accuracy": 1.0} if rank == 0 else {})}
    return outcome(lambda: xmp.all_reduce(tree))


def operations_differ(rank: int) -> str:
    return outcome(xmp.barrier if rank == 2 else lambda: xmp.all_gather(rank))


def reductions_differ(rank: int) -> str:
    return outcome(lambda: xmp.all_reduce(1.0, "max" if rank == 2 else "sum"))


def sources_differ(rank: int) -> str:
    return outcome(lambda: xmp.broadcast(rank, src=rank % 2))


def in_a_group(rank: int) -> str:
    xmp.init_process_group()
    group = torch.distributed.new_group([0, 2])
    if rank == 1:
        return ""
    return outcome(lambda: xmp.all_reduce(torch.ones(2 + rank), group=group))


SIDES = {
    "lengths_differ": (
        "ranks 0-1: all_reduce(sum of float32[4])",
        "rank 2: all_reduce(sum of float32[5])",
    ),
    "types_differ": ("all_reduce(sum of float32[4])", "rank 1: all_reduce(sum of int64[4])"),
    "structures_differ": (
        "rank 0: all_reduce(sum of {'accuracy': number, 'loss': float32[2]})",
        "all_reduce(sum of {'loss': float32[2]})",
    ),
    "operations_differ": ("all_gather()", "rank 2: barrier()"),
    "reductions_differ": ("all_reduce(sum of number)", "rank 2: all_reduce(max of number)"),
    "sources_differ": ("broadcast(src=0)", "rank 1: broadcast(src=1)"),
    "in_a_group": (
        "rank 0: all_reduce(sum of float32[2])",
        "rank 2: all_reduce(sum of float32[4])",
    ),
}


@pytest.mark.parametrize("name", SIDES)
def test_no_rank_returns_what_differs(name: str) -> None:
    said = [text for text in xmp.spawn(globals()[name], nprocs=RANKS, runtime="cpu") if text]
    for text in said:
        assert text.startswith("RuntimeError: the ranks' calls of collective"), text
        assert "test_checked_collectives.py:" in text
    together = "\n".join(said)
    for side in SIDES[name]:
        assert side in together


def goes_on(rank: int, tree: bool) -> list[str]:
    """With a tree some ranks have begun to reduce the tensor, and gather the number."""
    loss = torch.ones(5 if rank == 2 else 4)
    try:
        xmp.all_reduce({"loss": loss, "count": 1} if tree else loss)
    except RuntimeError as error:  # it lives on: what its frames hold must not
        first, second = str(error), outcome(xmp.barrier)
        xmp.init_process_group()
        return [first, second, outcome(lambda: xmp.all_reduce(1.0))]
    return ["returned"] * 3


@pytest.mark.parametrize("tree", [False, True])
def test_a_new_group_works_after_one_that_was_refused(tree: bool) -> None:
    for first, second, third in xmp.spawn(goes_on, (tree,), nprocs=RANKS, runtime="cpu"):
        assert "differ" in first
        assert "cannot be used any more; xmp.init_process_group(), on all replicas" in second
        assert third == "returned 3.0"


def one_has_no_number(rank: int, runs: int) -> list[str]:
    """Rank 1 has nothing to reduce, and meets the others all the same."""
    said = []
    for _ in range(runs):
        said.append(outcome(lambda: xmp.all_reduce(None if rank == 1 else 1)))
        xmp.init_process_group()
    return [*said, outcome(lambda: xmp.all_reduce("text"))]


def test_a_value_without_numbers_is_a_difference() -> None:
    for *differ, last in xmp.spawn(one_has_no_number, (3,), nprocs=RANKS, runtime="cpu"):
        assert all("all_reduce(sum of other)" in said for said in differ), differ
        assert last == "returned text"


def of_jax(rank: int) -> None:
    xmp.all_gather(1) if rank == 2 else xmp.barrier()


def test_jax_ends_with_both_sides() -> None:
    with pytest.raises(xmp.ReplicaRaised, match=r"rank 2: all_gather\(\)|barrier\(\)") as caught:
        xmp.spawn(of_jax, nprocs=RANKS, runtime="jax", grace=1)
    assert "differ" in str(caught.value)


def alike(rank: int) -> list[Any]:
    """Calls that differ in what need not be equal."""
    values = [1, np.float32(1), np.ones(())]
    gathered = xmp.all_gather("x" * rank)
    total = xmp.all_reduce(values[rank])
    if rank == 0:
        other = xmp.all_reduce(torch.ones(2))
    else:
        other = xmp.all_reduce(np.ones(2, dtype="float32"))
    return [gathered, float(total), float(other[0])]


def test_what_need_not_be_equal() -> None:
    results = xmp.spawn(alike, nprocs=2, runtime="cpu")
    assert list(results) == [[["", "x"], 2.0, 2.0]] * 2


def differ_unchecked(rank: int) -> str:
    return outcome(lambda: xmp.all_reduce(1.0, "max" if rank == 1 else "min"))


def test_it_can_be_switched_off() -> None:
    results = xmp.spawn(differ_unchecked, nprocs=2, runtime="cpu", env={"XMP_CHECK": "0"})
    assert list(results) == ["returned 1.0", "returned 1.0"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2, 3), "float32[2, 3]"),
        (torch.tensor(1, dtype=torch.bfloat16), "bfloat16[]"),
        (np.ones((), dtype="int8"), "number"),
        (np.ones(4, dtype=">f4"), ">f4[4]"),
        (2 + 1j, "number"),
        (None, "other"),
        ({"b": (1, "x"), "a": [torch.ones(1)]}, "{'a': [float32[1]], 'b': [number, other]}"),
    ],
)
def test_data_in_words(value: Any, words: str) -> None:
    assert described(value) == words
