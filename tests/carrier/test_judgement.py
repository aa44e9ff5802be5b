"""What the coordinator decides: which reported failure is the cause, and at which call all end."""

from __future__ import annotations

import pytest

from xmp._hosts.carrier.judgement import (
    BEATS_OF_THE_COORDINATOR,
    MEMBERS_SILENCE,
    MOST_STEPS,
    PATIENCE,
    SILENCE,
    Agreement,
    Judgement,
    Standstill,
)
from xmp._hosts.carrier.words import Malformed, Proposal, Step, decode, encode
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
    ([0.1, 8.0], 7.9, 1),
    ([0.1, 8.2], 8.1, 0),  # the last beat was 3 s before
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
    assert blamed or standstill.text == f"its host stood still for {turns[1] - turns[0]:.0f} s"


def test_both_sides_forgive_the_same_cut() -> None:
    """Members beat every second."""
    assert MEMBERS_SILENCE - BEATS_OF_THE_COORDINATOR >= SILENCE - 1 >= 7


def begun(hosts: int) -> Agreement:
    agreement = Agreement(hosts)
    assert agreement.begin()
    return agreement


def test_hosts_that_stand_still_agree_on_the_next_call() -> None:
    agreement = begun(2)
    assert agreement.heard(0, Step(0, 7)) is None
    assert agreement.heard(1, Step(0, 5)) == Proposal(1, 8)
    assert agreement.heard(1, Step(1, 6)) is None
    assert agreement.heard(0, Step(1, 7)) == Proposal(2, 8, final=True)


def test_a_proposal_that_a_host_has_passed_is_followed_by_one_at_twice_the_distance() -> None:
    agreement = begun(2)
    agreement.heard(0, Step(0, 7))
    agreement.heard(1, Step(0, 7))
    agreement.heard(0, Step(1, 20))
    assert agreement.heard(1, Step(1, 7)) == Proposal(2, 22)
    agreement.heard(0, Step(2, 21))
    assert agreement.heard(1, Step(2, 22)) == Proposal(3, 26)
    agreement.heard(0, Step(3, 25))
    assert agreement.heard(1, Step(3, 22)) == Proposal(4, 26, final=True)


def test_answers_of_another_round_do_not_count() -> None:
    agreement = begun(2)
    agreement.heard(0, Step(0, 7))
    assert agreement.heard(1, Step(1, 7)) is None
    assert agreement.heard(0, Step(0, 9)) is None
    assert agreement.heard(1, Step(0, 7)) == Proposal(1, 10)


def test_nothing_is_agreed_on_before_a_host_is_to_be_taken_away() -> None:
    agreement = Agreement(1)
    assert agreement.heard(0, Step(0, 7)) is None
    assert agreement.begin()
    assert not agreement.begin()


@pytest.mark.parametrize("step", [-1, MOST_STEPS + 1, 1 << 40])
def test_a_number_of_calls_that_nothing_has_made_is_malformed(step: int) -> None:
    with pytest.raises(Malformed, match=f"asked {step} times"):
        begun(2).heard(1, Step(0, step))


def test_every_proposal_is_one_that_hosts_can_read() -> None:
    """A hostile host answers each round with the largest number, for as long as it likes."""
    agreement = begun(1)
    for number in range(200):
        proposal = agreement.heard(0, Step(number, MOST_STEPS))
        assert proposal is not None
        assert decode(Proposal, encode(proposal)) == proposal
        if proposal.final:
            break
