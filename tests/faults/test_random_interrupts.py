"""A signal at any moment of a launch raises what its handler raises, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import interrupts
import pytest
from conftest import FIXED, FRESH


@pytest.mark.faults
@pytest.mark.parametrize(("seed", "count"), [(FIXED, 400), (FRESH, 100)])
def test_interrupts_at_random_moments(seed: int, count: int, tmp_path: Path) -> None:
    *rounds, summary = interrupts.play(seed, 0, count, tmp_path)
    wrong = [line["wrong"] for line in (*rounds, summary) if "wrong" in line]
    assert not wrong, "\n".join(wrong)
    assert summary["rounds"] == count
    assert summary["missed"] == 0
    assert summary["grown"] < 32e6, "bytes"
