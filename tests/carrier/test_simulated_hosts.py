"""./scripts/hosts: many simulated hosts against the real coordinator process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.hosts


def test_64_hosts(tmp_path: Path) -> None:
    """The messages of each step are counted: as many as hosts, and not as pairs of hosts."""
    place = tmp_path / "table.md"
    done = subprocess.run(
        [sys.executable, "scripts/_hosts/main.py", "--hosts", "2", "16", "64", "--seconds", "2",
         "--markdown", place],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in place.read_text().splitlines()]
    assert rows[0][3] == "64"
    messages = [int(row[3].replace(",", "")) for row in rows if row[0] == "| messages of that"]
    assert len(messages) == 4
    # The fan-in, the fan-out, and the beats of a second or two beside them.
    assert all(63 <= count <= 5 * 64 for count in messages), rows
    [progress] = [row for row in rows if row[0].startswith("| all make progress")]
    number, unit = progress[3].split()
    assert float(number) * {"ms": 0.001, "s": 1}[unit] < 2.5
