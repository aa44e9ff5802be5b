"""How replicas agree on the call of ``preempted()`` that is the first to return True."""

from __future__ import annotations

import os
from typing import Any

import pytest

from xmp._processes.supervisor.preemption_vote import PreemptionVote, VoteOverHosts


class Asked:
    """An agreement, and what it answers."""

    def __init__(self) -> None:
        self.agreement = PreemptionVote()

    def answer(self, rank: int, count: int) -> int:
        return self.agreement.report(rank, count)

    def end(self, *ranks: int) -> None:
        self.agreement.forget(*ranks)


@pytest.fixture
def asked() -> Any:
    asked = Asked()
    yield asked
    os.close(asked.agreement.flag)


def test_no_replica_looks_at_the_flag(asked: Asked) -> None:
    assert asked.agreement.begin() is False
    asked.answer(0, 1)
    asked.end(0)
    assert asked.agreement.begin() is False


@pytest.mark.parametrize("looks", [True, False])
def test_another_host_has_begun_the_vote(looks: bool) -> None:
    """Replicas that never look do not end by themselves: they must get the signal."""
    vote = VoteOverHosts(lambda number, most: None)
    try:
        if looks:
            vote.answer(0, 1, lambda number: None)
            vote.forget(0)
        vote.begin_elsewhere()
        assert vote.begin() is looks
    finally:
        os.close(vote.flag)


def test_the_next_number_that_none_has_reached(asked: Asked) -> None:
    assert [asked.answer(rank, 1) for rank in range(3)] == [0, 0, 0]
    assert asked.agreement.begin() is True
    assert [asked.answer(0, 7), asked.answer(0, 8), asked.answer(1, 5)] == [0, 0, 0]
    assert asked.answer(2, 6) == 9
    assert [asked.answer(0, 9), asked.answer(1, 6)] == [9, 9]
    assert asked.agreement.begin() is False, "the second time"


def test_the_last_that_was_waited_for_ends(asked: Asked) -> None:
    for rank in range(3):
        asked.answer(rank, 1)
    asked.agreement.begin()
    assert [asked.answer(0, 4), asked.answer(1, 30)] == [0, 0]
    asked.end(1, 2)
    assert asked.answer(0, 5) == 5, "not the number of one that has ended"


def test_a_late_replica_takes_part(asked: Asked) -> None:
    asked.answer(0, 1)
    asked.agreement.begin()
    assert asked.answer(1, 1) == 0
    assert asked.answer(0, 2) == 3
    assert asked.answer(2, 1) == 3
