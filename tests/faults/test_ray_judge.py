"""The judge of the rounds on Ray finds what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from ray_judge import SUMS, misses
from ray_kinds import RayRound


def drawn(kind: str, **more: Any) -> RayRound:
    fields = {
        "seed": 0, "number": 0, "kind": kind, "moment": "first", "after": 0.0, "driver": 0,
        "host": 1, "victim": 3, "step": 0, "method": "forkserver", "grace": 1.0, "backend": None,
        "kept": False, **more,
    }  # fmt: skip
    return RayRound(**fields)


RAISE, KILLED, NONE = drawn("raise"), drawn("agent-killed"), drawn("none", moment="allreduce")
RAISED = {
    "type": "ReplicaRaised", "rank": 3, "host": "h0",
    "text": "rank 3 of 4 raised ValueError: planned", "traceback": 'raise ValueError("planned")',
}  # fmt: skip
LOST = {"type": "HostLost", "text": "host 0 (h1) is lost", "rank": None, "host": "h1"}
STOPPED = {"type": "KeyboardInterrupt", "text": "", "rank": None, "host": None}


def said(error: dict[str, Any]) -> dict[str, Any]:
    """An error of a job whose host 0 is the node h1."""
    return {"error": error, "hosts": ["h1", "h0"]}


def test_good_rounds_miss_nothing() -> None:
    assert misses(RAISE, said(RAISED), 1.9) == []
    assert misses(KILLED, said(LOST), 2.9) == []
    assert misses(drawn("cut"), said(LOST), 14) == []
    assert misses(drawn("ctrl-c"), said(STOPPED), 2.9) == []
    assert misses(NONE, {"results": SUMS, "hosts": ["h1", "h0"]}, 100) == []
    assert misses(drawn("driver-killed"), {"code": -9}, 1.9) == []
    assert misses(drawn("sigterm"), {"code": -15}, 2.9) == []


@pytest.mark.parametrize(
    ("wrong", "miss"),
    [
        ({"type": "ReplicaDied"}, "wanted one of ('ReplicaRaised',)"),
        ({"rank": 1}, "wanted (3, 'h0')"),
        ({"host": "h1"}, "wanted (3, 'h0')"),
        ({"text": "rank 3 of 4 raised"}, "is not in the text"),
        ({"traceback": ""}, "no traceback"),
    ],
)
def test_another_replica_is_blamed(wrong: dict[str, Any], miss: str) -> None:
    [found] = misses(RAISE, said({**RAISED, **wrong}), 1.0)
    assert found.startswith(miss) or miss in found


@pytest.mark.parametrize(
    ("error", "miss"),
    [
        (RAISED, "wanted one of ('HostLost', 'StartError')"),
        ({**LOST, "text": "host 0 is lost"}, "h1 is not named"),
        ({**LOST, "host": "h0"}, "wanted h1 as the host that is lost"),
    ],
)
def test_another_host_is_blamed(error: dict[str, Any], miss: str) -> None:
    [found] = misses(KILLED, said(error), 1.0)
    assert miss in found


def test_results_where_an_error_is_due_and_the_reverse() -> None:
    assert "wanted an error" in misses(RAISE, {"results": SUMS}, 1.0)[0]
    assert "wanted the results" in misses(NONE, said(LOST), 1.0)[0]
    assert "wanted the results" in misses(NONE, {"results": SUMS[:3]}, 1.0)[0]
    assert "wanted the exit code -9" in misses(drawn("driver-killed"), {"code": 1}, 1.0)[0]
    assert "wanted the exit code -15" in misses(drawn("sigterm"), {"code": 0}, 1.0)[0]


def test_a_late_error() -> None:
    assert misses(RAISE, said(RAISED), 2.1) == ["2.10 s, more than 2 s"]
    assert misses(RAISE, said(RAISED), 2.1, slow=2.0) == []
    assert misses(drawn("cut"), said(LOST), 15.1) == ["15.10 s, more than 15 s"]
    assert misses(drawn("raylet-killed", grace=0.5), said(LOST), 5.6) == ["5.60 s, more than 5.5 s"]
