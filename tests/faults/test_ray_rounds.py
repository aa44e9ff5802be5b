"""Three rounds of a fixed seed over two hosts of a Ray cluster, and two of a new one.

``./scripts/faults --ray 50`` plays fifty, ``--seed S --round I`` with it repeats one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import FIXED, FRESH
from ray_kinds import ALL, KINDS, RayRound, draw
from ray_rounds import Rounds, rounds_on_ray

ROUNDS = [*(draw(FIXED, number) for number in range(3)), *(draw(FRESH, n) for n in range(2))]


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nothing_left_by_module: None
) -> Iterator[Rounds]:
    with rounds_on_ray(tmp_path_factory.mktemp("ray")) as made:
        yield made


@pytest.mark.faults
@pytest.mark.netns
@pytest.mark.root
@pytest.mark.parametrize("drawn", ROUNDS, ids=[f"{r.seed}/{r.number}" for r in ROUNDS])
def test_a_random_fault_of_two_hosts_of_ray(drawn: RayRound, cluster: Rounds) -> None:
    outcome = cluster.play(drawn)
    print(outcome)
    assert not outcome.misses, outcome


def test_every_fault_on_ray_is_drawn_once_a_lap_and_the_same_again() -> None:
    rounds = [draw(7, number) for number in range(len(KINDS))]
    assert {round.kind for round in rounds} == {kind.name for kind in KINDS}
    assert rounds == [draw(7, number) for number in range(len(KINDS))]
    many = [draw(7, number) for number in range(500)]
    assert {(each.kind, each.moment) for each in many} == {
        (kind.name, moment) for kind in KINDS for moment in kind.moments
    }
    assert {each.moment for each in many} == set(ALL)
    places = {(each.driver, each.host, each.victim) for each in many}
    assert places == {(d, h, v) for d in (0, 1) for h in (0, 1) for v in range(4)}


def test_a_fault_that_takes_long_is_in_every_second_lap() -> None:
    seldom = sum(kind.seldom for kind in KINDS)
    laps = range(2 * len(KINDS) - seldom)
    kinds = [draw(7, number).kind for number in laps]
    for kind in KINDS:
        assert kinds.count(kind.name) == (1 if kind.seldom else 2)
