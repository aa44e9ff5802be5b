"""Forty rounds of a fixed seed, the same in every run, and ten of a new one, which is printed.

``./scripts/faults --seed S --round I`` repeats one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from kinds import Round
from rounds import AT_ONCE, Outcome, play

Start = dict[Round, "Future[Outcome]"]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, nothing_left_by_module: None) -> Iterator[Start]:
    """All rounds that were chosen, some at a time: most of a round is waiting."""
    chosen = [item.callspec.params["round"] for item in request.session.items
              if getattr(item, "originalname", "") == test_a_random_fault.__name__]  # fmt: skip
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {round: pool.submit(play, round) for round in chosen}
        pool.shutdown(cancel_futures=True)


@pytest.mark.faults
def test_a_random_fault(round: Round, outcomes: Start) -> None:
    outcome = outcomes[round].result()
    print(outcome)
    assert not outcome.misses, outcome
