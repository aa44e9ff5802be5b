"""Every round looks itself at what is left of it, more closely than the general fixture does."""

from __future__ import annotations

import os
import random

import pytest

FIXED, FRESH = 5, random.SystemRandom().randrange(100_000)


def pytest_report_header() -> str:
    return f"random faults: seed {FIXED} and a fresh one, {FRESH}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``round``: forty of the fixed seed, ten of the fresh one."""
    if "round" in metafunc.fixturenames:
        from kinds import draw

        root = os.geteuid() == 0
        rounds = [draw(FIXED, number, root) for number in range(40)]
        rounds += [draw(FRESH, number, root) for number in range(10)]
        metafunc.parametrize("round", rounds, ids=[f"{r.seed}/{r.number}" for r in rounds])


@pytest.fixture(autouse=True)
def nothing_left(nothing_left_by_module: None, clean_environment: None) -> None:
    """Rounds of other tests run at the same time; the module looks when all are done."""
