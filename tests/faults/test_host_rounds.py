"""Three rounds of a fixed seed over two hosts in namespaces, and two of a new one.

``./scripts/faults --hosts 50`` plays fifty, ``--seed S --round I`` with it repeats one.
"""

from __future__ import annotations

import pytest
from conftest import FIXED, FRESH
from host_kinds import KINDS, HostRound, draw
from host_rounds import play

ROUNDS = [*(draw(FIXED, number) for number in range(3)), *(draw(FRESH, n) for n in range(2))]


@pytest.mark.faults
@pytest.mark.netns
@pytest.mark.root
@pytest.mark.parametrize("drawn", ROUNDS, ids=[f"{r.seed}/{r.number}" for r in ROUNDS])
def test_a_random_fault_of_two_hosts(drawn: HostRound) -> None:
    outcome = play(drawn)
    print(outcome)
    assert not outcome.misses, outcome


def test_every_fault_of_hosts_is_drawn_once_a_lap_and_the_same_again() -> None:
    rounds = [draw(7, number) for number in range(len(KINDS))]
    assert {round.kind for round in rounds} == {kind.name for kind in KINDS}
    assert rounds == [draw(7, number) for number in range(len(KINDS))]
    many = [draw(7, number) for number in range(500)]
    assert {round.moment for round in many} == {m for kind in KINDS for m in kind.moments}
    assert {(round.host, round.victim) for round in many} == {
        (h, v) for h in (0, 1) for v in range(4)
    }
