"""The culprit is named though its victims fail at about the same time, or report it first."""

from __future__ import annotations

import culprit
import pytest


@pytest.mark.faults
@pytest.mark.parametrize(("framework", "how"), culprit.CASES)
def test_the_culprit_is_named(framework: str, how: str) -> None:
    *runs, end = culprit.lines(framework, how, count=3, seed=1)
    assert [line[:4] for line in runs] == ["ok  "] * 3, runs
    assert end == ""
