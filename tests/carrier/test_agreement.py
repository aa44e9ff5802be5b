"""The call of ``preempted()`` on which hosts agree: above all that were made, by few rounds."""

from __future__ import annotations

import pytest

from xmp._hosts.carrier.agreement import MOST_STEPS, Agreement
from xmp._hosts.carrier.words import Malformed, Proposal, Step, decode, encode


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
