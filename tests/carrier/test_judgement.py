"""One verdict: which of the reported failures is taken for the cause, and when."""

from __future__ import annotations

from xmp._carrier.judgement import PATIENCE, SILENCE, Judgement
from xmp._host_words import HostFailure

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
