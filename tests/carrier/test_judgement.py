"""One verdict: which of the reported failures is taken for the cause, and when."""

from __future__ import annotations

import pytest

from xmp._hosts.carrier.judgement import MEMBERS_SILENCE, PATIENCE, SILENCE, Judgement, Standstill
from xmp._words.host_words import HostFailure

CAUSE = HostFailure(1, rank=3, text="ValueError: no such label")
SYMPTOM = HostFailure(0, rank=1, text="Connection closed by peer", symptom=True)


def test_the_first_cause_wins() -> None:
    judgement = Judgement()
    judgement.failed(CAUSE, 5.0)
    judgement.failed(HostFailure(2, rank=5), 5.1)
    assert judgement.verdict == CAUSE


def test_a_symptom_waits_for_its_cause() -> None:
    judgement = Judgement()
    judgement.failed(SYMPTOM, 5.0)
    judgement.judge(5.0 + PATIENCE / 2, suspects=False)
    assert judgement.waits
    judgement.failed(CAUSE, 5.0 + PATIENCE / 2)
    assert judgement.verdict == CAUSE


def test_a_symptom_alone_is_the_verdict_in_the_end() -> None:
    judgement = Judgement()
    judgement.failed(SYMPTOM, 5.0)
    judgement.judge(5.01 + PATIENCE, suspects=False)
    assert judgement.verdict == SYMPTOM


def test_with_a_silent_host_a_symptom_waits_until_that_host_is_lost() -> None:
    judgement = Judgement()
    judgement.failed(SYMPTOM, 5.0)
    judgement.judge(5.0 + PATIENCE, suspects=True)
    assert judgement.waits
    judgement.judge(5.01 + SILENCE, suspects=True)
    assert judgement.verdict == SYMPTOM


# --- time in which the coordinator itself did not run ---

TURNS = [
    # the times of its turns, the seconds that it takes for its own, whom it blames for an end then
    ([0.1, 0.2, 1.1], 0.0, 1),
    ([0.1, 4.1], 4.0, 1),
    ([0.1, 10.0], 9.9, 1),
    ([0.1, 12.1], 12.0, 0),
    ([0.1, 12.1, 12.2, 20.0], 12.0 + 7.8, 0),
    ([0.1, 12.1, *(12.1 + each / 2 for each in range(1, 20))], 12.0, 1),
]


@pytest.mark.parametrize(("turns", "own", "blamed"), TURNS)
def test_a_host_that_stood_still_blames_no_other(
    turns: list[float], own: float, blamed: int
) -> None:
    """The others have given it up after so long, and end their connections."""
    standstill = Standstill(0.0)
    assert sum(map(standstill.turn, turns)) == pytest.approx(own)
    assert standstill.blamed(1, turns[-1]) == blamed
    assert blamed or standstill.text == "its host stood still for 12 s"


def test_both_sides_forgive_the_same_cut() -> None:
    """Members beat every second, the coordinator every third one."""
    assert MEMBERS_SILENCE - 3 >= SILENCE - 1 >= 7
