"""A signal at any moment of a program's first call raises what its handler raises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FRESH

from tests.support.stage import ROOT

# By hand: PYTHONPATH=. .venv/bin/python tests/faults/first_calls.py SEED 0 500
FEW = ("plan", "preload", "spawn, here", "launch, a rank", "barrier", "replica")


@pytest.mark.faults
def test_first_calls_are_interrupted_at_random_moments() -> None:
    command = [sys.executable, str(Path(__file__).with_name("first_calls.py"))]
    done = subprocess.run(
        [*command, str(FRESH), "0", str(4 * len(FEW)), *FEW],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    *wrong, summary = map(json.loads, done.stdout.splitlines())
    assert not wrong, wrong
    assert summary["rounds"] == 4 * len(FEW)
