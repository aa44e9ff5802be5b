"""``timeout=`` of collectives: all ranks raise and say who has not come, or none does."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

import xmp
from tests.frameworks.test_checked_collectives import outcome
from tests.support.waiting import until
from xmp._inside import identity

pytestmark = [pytest.mark.framework, pytest.mark.failing]

CALLS: dict[str, Callable[..., Any]] = {
    "barrier": lambda rank, **limit: xmp.barrier(**limit),
    "all_reduce": lambda rank, **limit: xmp.all_reduce(rank, **limit),
    "broadcast": lambda rank, **limit: xmp.broadcast(rank, **limit),
    "all_gather": lambda rank, **limit: xmp.all_gather(rank, **limit),
}
VALUES = {"barrier": None, "all_reduce": 6, "broadcast": 0, "all_gather": [0, 1, 2, 3]}


def together(folder: Path, name: str, rank: int, of: int = 3) -> None:
    """Wait until so many ranks have called this; it needs no framework."""
    (folder / f"{name}-{rank}").write_text("")
    until(lambda: len([*folder.glob(f"{name}-*")]) == of, 60)


def late(rank: int, folder: Path, call: Callable[[], Any]) -> str:
    """Make a call for which rank 2 comes when the three others have given up."""
    if rank == 2:
        until(lambda: len([*folder.glob("raised-*")]) == 3, 60)
        return outcome(call)
    together(folder, "ready", rank)
    said = outcome(call)
    together(folder, "raised", rank)
    return said


def comes_late(rank: int, name: str, formed: bool, folder: Path) -> list[str]:
    call = CALLS[name]
    if formed:
        xmp.barrier()
    first = late(rank, folder, lambda: call(rank, timeout=1.5))
    return [first, outcome(lambda: call(rank, timeout=60)), outcome(lambda: call(rank))]


@pytest.mark.parametrize(
    ("name", "runtime", "formed"),
    [
        ("barrier", "cpu", False),
        ("all_reduce", "jax", False),
        ("broadcast", "cpu", True),
        ("all_gather", "jax", True),
    ],
)
def test_the_late_rank_is_named_on_all(
    name: str, runtime: str, formed: bool, tmp_path: Path
) -> None:
    results = xmp.spawn(comes_late, (name, formed, tmp_path), nprocs=4, runtime=runtime)
    for first, second, third in results:
        start = f"TimeoutError: xmp.{name}(timeout=1.5): rank 2 has not come to the {name} at "
        assert first.startswith(start + "test_timed_collectives.py:"), first
        assert "where ranks 0-1, 3 wait" in first
        assert "it is in until() at waiting.py:" in first
        assert second == third == f"returned {VALUES[name]}"


def in_groups(rank: int, folder: Path) -> str:
    xmp.init_process_group()
    pairs = [torch.distributed.new_group([0, 3]), torch.distributed.new_group([1, 2])]
    pair = pairs[rank in (1, 2)]
    limit = timedelta(seconds=60 if rank in (0, 3) else 0.5)
    if rank == 2:
        until((folder / "raised-1").exists, 60)
    said = outcome(lambda: xmp.all_reduce(rank, group=pair, timeout=limit))
    if rank == 1:
        together(folder, "raised", rank, of=1)
    return said


def test_a_group_waits_for_its_own_ranks(tmp_path: Path) -> None:
    said = xmp.spawn(in_groups, (tmp_path,), nprocs=4, runtime="cpu")
    assert said[0] == said[3] == "returned 3"
    assert said[1] == said[2]
    assert "rank 2 has not come to the all_reduce at test_timed_collectives.py" in said[1]


def returns_early(rank: int) -> str:
    return "" if rank == 1 else outcome(lambda: xmp.barrier(timeout=3600))


def test_a_rank_that_has_returned_ends_the_wait_at_once() -> None:
    begun = time.monotonic()
    said = xmp.spawn(returns_early, nprocs=3, runtime="cpu")
    assert "rank 1 has not come to the barrier" in said[0]
    assert "its function has returned" in said[2]
    assert time.monotonic() - begun < 600


def one_without(rank: int) -> str:
    if rank == 2:
        record = identity.current().record
        assert record is not None
        until(lambda: record.read(0).inside and record.read(1).inside)
        return outcome(xmp.barrier)
    return outcome(lambda: xmp.barrier(timeout=3600))


@pytest.mark.parametrize("runtime", ["cpu", "jax"])
def test_a_limit_on_some_ranks_is_a_difference(runtime: str) -> None:
    said = xmp.spawn(one_without, nprocs=3, runtime=runtime)
    for text in said:
        assert text.startswith("RuntimeError: the ranks' calls of collective 1 differ:"), text
    assert "barrier(timeout) at" in said[0]
    assert "rank 2: barrier() at" in said[2]


def in_a_thread(rank: int) -> list[str]:
    """A thread has no record, and meets all the same."""
    import threading

    said: list[str] = []

    def body() -> None:
        said.append(outcome(lambda: xmp.barrier(timeout=60)))
        said.append(outcome(lambda: xmp.all_reduce(1, timeout=60)))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return said


def test_in_a_thread_of_the_replica() -> None:
    said = xmp.spawn(in_a_thread, nprocs=2, runtime="cpu")
    assert list(said) == [["returned None", "returned 2"]] * 2


@pytest.mark.parametrize(
    ("timeout", "error", "words"),
    [
        (0, ValueError, "timeout is 0; it must be a number of seconds above 0"),
        (-1.5, ValueError, "timeout is -1.5"),
        (float("nan"), ValueError, "timeout"),
        ("5", TypeError, "timeout"),
        (timedelta(0), ValueError, "timeout is datetime.timedelta"),
    ],
)
@pytest.mark.parametrize("name", CALLS)
def test_bad_limits(name: str, timeout: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        CALLS[name](0, timeout=timeout)
