"""The judge of the rounds over two hosts finds what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from host_judge import RESULTS, Said, misses, seconds
from host_kinds import HostRound

FAULT = 1_000_000_000
RAISE = HostRound(seed=0, number=0, kind="raise", moment="first", host=1, victim=3, step=0)
CUT = HostRound(seed=0, number=0, kind="cut", moment="first", host=1, victim=0, step=0)
PAUSE = HostRound(seed=0, number=0, kind="launcher-paused", moment="end", host=1, victim=0, step=0)
RAISED = {
    "type": "ReplicaRaised", "rank": 3, "host": "h1",
    "text": "rank 3 of 4 raised ValueError: planned", "traceback": 'raise ValueError("planned")',
}  # fmt: skip
LOST = {"type": "HostLost", "text": "host 1 (h1) is lost", "rank": None, "host": "h1"}


def said(first: dict[str, Any], second: dict[str, Any], after: float = 1.0) -> Said:
    """The errors of both hosts, so many seconds after the fault."""
    at = FAULT + int(after * 1e9)
    return {0: {"error": first, "at": at}, 1: {"error": second, "at": FAULT}}


def test_good_rounds_miss_nothing() -> None:
    assert misses(RAISE, FAULT, said(RAISED, RAISED)) == []
    assert misses(CUT, FAULT, said(LOST, LOST, 14)) == []
    results = {host: {"results": RESULTS["late"][host], "at": FAULT} for host in range(2)}
    assert misses(PAUSE, FAULT, results) == []
    assert seconds(RAISE, FAULT, said(RAISED, RAISED)) == 1.0
    assert seconds(PAUSE, FAULT, results) is None


@pytest.mark.parametrize(
    ("wrong", "miss"),
    [
        ({"type": "ReplicaDied"}, "wanted ('ReplicaRaised', 3, 'h1')"),
        ({"rank": 1}, "wanted ('ReplicaRaised', 3, 'h1')"),
        ({"host": "h0"}, "wanted ('ReplicaRaised', 3, 'h1')"),
        ({"text": "rank 3 of 4 raised"}, "is not in the text"),
        ({"traceback": ""}, "no traceback"),
    ],
)
def test_one_host_says_something_else(wrong: dict[str, Any], miss: str) -> None:
    [found] = misses(RAISE, FAULT, said({**RAISED, **wrong}, RAISED))
    assert found.startswith("host 0: ")
    assert miss in found


@pytest.mark.parametrize(
    ("error", "miss"),
    [
        (RAISED, "wanted one of ('HostLost',)"),
        ({**LOST, "text": "host 0 is lost"}, "host 1 is not named"),
    ],
)
def test_a_lost_host_is_not_named(error: dict[str, Any], miss: str) -> None:
    assert miss in " ".join(misses(CUT, FAULT, said(error, LOST)))


def test_a_host_that_is_lost_blames_a_replica() -> None:
    assert "host 1: wanted one of" in " ".join(misses(CUT, FAULT, said(LOST, RAISED)))


def test_results_where_an_error_is_due_and_the_reverse() -> None:
    fine = {"results": [[0, 0, 4, 6.0]], "at": FAULT}
    assert "wanted an error" in " ".join(misses(RAISE, FAULT, {0: fine, 1: fine}))
    assert "wanted results" in misses(PAUSE, FAULT, said(LOST, LOST))[1]
    assert "wanted results" in " ".join(misses(PAUSE, FAULT, {0: fine}))


def test_a_late_error() -> None:
    late = said(RAISED, RAISED, 2.1)
    assert misses(RAISE, FAULT, late) == ["2.10 s, more than 2 s"]
    assert misses(RAISE, FAULT, late, slow=2.0) == []
