"""The judge of the rounds finds what is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from judge import Facts, misses, seconds
from kinds import KINDS, METHODS, Round, draw

RAISE = Round(
    seed=0, number=0, kind="raise", moment="first", method="spawn", nprocs=3, victim=1, step=0,
    others="wait", grace=1.0, baggage=False,
)  # fmt: skip
ERROR = {
    "type": "ReplicaRaised", "text": "rank 1 of 3 raised ValueError: planned", "rank": 1,
    "exit_code": 1, "signal": None, "stacks": [],
    "labels": {"1": "cause", "0": "stopped by xmp", "2": "collateral"},
}  # fmt: skip
SAID = {
    "called": 1_000_000_000, "at": 3_000_000_000, "error": ERROR, "results": {},
    "alive": {"7": "xmp-template"}, "again": [0, 1], "threads": 1, "children": [],
}  # fmt: skip
GOOD = Facts(code=0, err="", fault=2_000_000_000, said=SAID)


def test_a_good_round_misses_nothing() -> None:
    assert misses(RAISE, GOOD) == []
    assert seconds(RAISE, GOOD) == 1.0


@pytest.mark.parametrize(
    ("wrong", "miss"),
    [
        ({"type": "ReplicaDied"}, "wanted ReplicaRaised"),
        ({"rank": 2}, "'rank': 2"),
        ({"signal": "SIGTERM"}, "SIGTERM"),
        ({"labels": {"1": "cause", "0": "cause"}}, "labels"),
        ({"labels": {"1": "collateral"}}, "labels"),
        ({"text": "rank 2 of 3 raised ValueError: planned"}, "does not begin with the victim"),
        ({"text": "rank 1 of 3 raised OSError"}, "is not in the text"),
    ],
)
def test_a_wrong_verdict(wrong: dict[str, Any], miss: str) -> None:
    said = {**SAID, "error": {**ERROR, **wrong}}
    assert miss in " ".join(misses(RAISE, dataclasses.replace(GOOD, said=said)))


@pytest.mark.parametrize(
    ("wrong", "miss"),
    [
        ({"error": None}, "got the results"),
        ({"results": {"0": "else"}}, "strange results"),
        ({"at": 4_100_000_000}, "verdict after 2.10 s, more than 2 s"),
        ({"alive": {"7": "xmp-replica-0"}}, "alive when spawn came back"),
        ({"again": "nothing"}, "the next launch"),
        ({"threads": 2}, "2 threads"),
        ({"children": [7]}, "children [7]"),
    ],
)
def test_what_is_wrong_besides(wrong: dict[str, Any], miss: str) -> None:
    facts = dataclasses.replace(GOOD, said={**SAID, **wrong})
    assert miss in " ".join(misses(RAISE, facts))


@pytest.mark.parametrize(
    ("wrong", "miss"),
    [
        ({"left": {7: "python"}}, "left alive"),
        ({"files": ("/dev/shm/x",)}, "left: /dev/shm/x"),
        ({"fault": None}, "did not happen"),
        ({"said": None}, "without a word"),
    ],
)
def test_what_is_left(wrong: dict[str, Any], miss: str) -> None:
    assert miss in " ".join(misses(RAISE, dataclasses.replace(GOOD, **wrong)))


def test_a_slow_host_has_more_time() -> None:
    late = dataclasses.replace(GOOD, said={**SAID, "at": 4_100_000_000})
    assert misses(RAISE, dataclasses.replace(late, slow=2.0)) == []
    assert misses(RAISE, dataclasses.replace(late, slow=1.05))


def test_a_fault_that_is_none_wants_the_results() -> None:
    flood = dataclasses.replace(RAISE, kind="flood")
    results = {str(rank): ["fine", rank] for rank in range(3)}
    fine = {**SAID, "error": None, "results": results}
    assert misses(flood, dataclasses.replace(GOOD, said=fine)) == []
    assert misses(flood, GOOD)


def test_every_fault_is_drawn_once_a_lap_and_the_same_again() -> None:
    rounds = [draw(7, number) for number in range(len(KINDS))]
    assert {round.kind for round in rounds} == {kind.name for kind in KINDS}
    assert rounds == [draw(7, number) for number in range(len(KINDS))]
    assert rounds != [draw(8, number) for number in range(len(KINDS))]
    many = [draw(7, number) for number in range(500)]
    assert {round.method for round in many} == set(METHODS)
    assert {round.moment for round in many} == {m for kind in KINDS for m in kind.moments}
