"""The whole folder once more, as on a kernel or platform that has none of the optional features."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FEATURES = "pidfd,memfd,close_range,subreaper,setsig,pdeathsig"
# What needs a subreaper to find orphans, and what does not start a process at all.
LEFT_OUT = "not subreaper and not first_pass and not slow"

pytestmark = pytest.mark.first_pass


@pytest.mark.slow
@pytest.mark.no_deadline
def test_the_behaviour_is_the_same_without_kernel_features() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", LEFT_OUT, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--tb=short", "--maxfail=20", str(Path(__file__).parent)],
        env={**os.environ, "XMP_WITHOUT": FEATURES},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"without {FEATURES}:\n{done.stdout}"


def test_the_switch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt feature must not make the second pass a repetition of the first."""
    code = "import xmp; xmp.spawn(print, nprocs=2, runtime='cpu')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "XMP_WITHOUT": "pidfd,nonsense"},
        capture_output=True,
        text=True,
        timeout=25,
    )
    assert done.returncode == 1
    assert "nonsense" in done.stderr
