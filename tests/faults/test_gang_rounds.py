"""Random faults of gangs: thirty of a fixed seed, ten of a new one."""

from __future__ import annotations

import pytest
from conftest import FIXED, FRESH
from gang_rounds import play


@pytest.mark.faults
@pytest.mark.parametrize(("seed", "rounds"), [(FIXED, 30), (FRESH, 10)])
def test_random_faults_of_gangs(seed: int, rounds: int) -> None:
    lines = play(seed, rounds)
    assert len(lines) == rounds, lines
    assert not [line for line in lines if not line.startswith("ok ")]
