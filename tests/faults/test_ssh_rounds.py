"""Two rounds of a fixed seed over two hosts of ssh, and one of a new one.

``./scripts/faults --ssh 50`` plays fifty, ``--seed S --round I`` with it repeats one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import FIXED, FRESH
from ray_kinds import ALL
from ssh_rounds import KINDS, SshRound, SshRounds, draw, rounds_on_ssh

ROUNDS = [draw(FIXED, 0), draw(FIXED, 1), draw(FRESH, 0)]


@pytest.fixture(scope="module")
def hosts(
    tmp_path_factory: pytest.TempPathFactory, nothing_left_by_module: None
) -> Iterator[SshRounds]:
    with rounds_on_ssh(tmp_path_factory.mktemp("ssh")) as made:
        yield made


@pytest.mark.ssh
@pytest.mark.netns
@pytest.mark.root
@pytest.mark.parametrize("drawn", ROUNDS, ids=[f"{r.seed}/{r.number}" for r in ROUNDS])
def test_a_random_fault_of_two_hosts_of_ssh(drawn: SshRound, hosts: SshRounds) -> None:
    outcome = hosts.play(drawn)
    print(outcome)
    assert not outcome.misses, outcome


def test_every_fault_over_ssh_is_drawn_once_a_lap_and_the_same_again() -> None:
    rounds = [draw(7, number) for number in range(len(KINDS))]
    assert {round.kind for round in rounds} == {kind.name for kind in KINDS}
    assert rounds == [draw(7, number) for number in range(len(KINDS))]
    many = [draw(7, number) for number in range(500)]
    assert {(each.kind, each.moment) for each in many} == {
        (kind.name, moment) for kind in KINDS for moment in kind.moments
    }
    assert {each.moment for each in many} == set(ALL)
