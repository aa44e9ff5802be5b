"""A replica whose program has replaced its clock, or put odd objects among its modules."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from tests.support.launching import failure, launch


def changes_the_clock(rank: int, now: int, how: str = "") -> int:
    """As freezegun does, and leaves it so."""
    time.monotonic_ns = lambda: now
    if how == "raise" and rank == 1:
        raise ValueError("no data")
    if how == "exit" and rank == 1:
        sys.exit(3)
    return rank


@pytest.mark.parametrize("now", [2**62, -5])
def test_another_clock_ends_no_launch(now: int) -> None:
    results = launch("forkserver", changes_the_clock, now)
    assert list(results) == [0, 1]
    for times in results.timeline.values():
        assert 0 < times.called <= times.entered <= times.left <= time.monotonic_ns()


@pytest.mark.failing
def test_another_clock_hides_no_failure() -> None:
    error = failure("forkserver", changes_the_clock, 2**62, "raise")
    assert isinstance(error.__cause__, ValueError)
    assert failure("forkserver", changes_the_clock, -5, "exit").exit_code == 3


class NeedsMore:
    """Stands among the modules, and imports what is not installed at each access."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError("this needs more")


def puts_it_among_the_modules(rank: int) -> int:
    sys.modules["needs_more"] = NeedsMore()  # type: ignore[assignment]
    return rank


def test_an_object_among_the_modules_ends_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(launch("forkserver", puts_it_among_the_modules)) == [0, 1]
    monkeypatch.setitem(sys.modules, "needs_more", NeedsMore())
    assert list(launch("forkserver", changes_the_clock, 5)) == [0, 1]
