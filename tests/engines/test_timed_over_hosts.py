"""Collectives whose ranks are on two hosts: ``timeout=``, and XMP_CHECK=1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.frameworks.test_checked_collectives import outcome
from tests.frameworks.test_timed_collectives import late

pytestmark = pytest.mark.hosts

TWO: dict[str, Any] = {"engine": "local", "hosts": 2, "nprocs": 2, "progress": False}


def comes_late(rank: int, folder: Path) -> list[str]:
    xmp.barrier()
    first = late(rank, folder, lambda: xmp.all_reduce(1, timeout=1.5))
    rest = [outcome(lambda: xmp.all_reduce(1, timeout=60)) for _ in range(3)]
    return [first, *rest, outcome(lambda: xmp.all_reduce(1))]


@pytest.mark.parametrize("runtime", ["cpu", "jax"])
def test_the_late_rank_is_named_on_all_hosts(runtime: str, tmp_path: Path) -> None:
    for said in xmp.launch(comes_late, (tmp_path,), runtime=runtime, **TWO):
        named = "TimeoutError: xmp.all_reduce(timeout=1.5): rank 2 has not come"
        assert said == [named, *["returned 4"] * 4]


def before_the_group(rank: int) -> str:
    return outcome(lambda: xmp.barrier(timeout=5))


def test_torch_needs_its_group_first() -> None:
    for said in xmp.launch(before_the_group, runtime="cpu", **TWO):
        assert "call xmp.init_process_group(timeout=...) before" in said


def differs(rank: int) -> list[str]:
    first = outcome(lambda: xmp.all_gather(1) if rank == 3 else xmp.barrier())
    second = outcome(lambda: xmp.all_reduce(1, "max" if rank == 0 else "sum", timeout=60))
    return [first, second, outcome(lambda: xmp.all_reduce(1))]


@pytest.mark.parametrize("runtime", ["cpu", "jax"])
def test_calls_that_differ(runtime: str) -> None:
    env = {"XMP_CHECK": "1"}
    if runtime == "cpu":
        results = xmp.launch(formed, runtime=runtime, env=env, **TWO)
    else:
        results = xmp.launch(differs, runtime=runtime, env=env, **TWO)
    for first, second, third in results:
        assert first.startswith("RuntimeError: the ranks' calls of collective "), first
        assert "ranks 0-2: barrier() at" in first
        assert "rank 3: all_gather() at" in first
        assert "rank 0: all_reduce(max of number, timeout) at" in second
        assert third == "returned 4"


def formed(rank: int) -> list[str]:
    xmp.init_process_group()
    return differs(rank)
