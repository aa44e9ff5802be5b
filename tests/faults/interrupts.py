"""Launches that a signal interrupts at random moments: see ``interrupted``, which makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.stage import ROOT

__all__ = ["PART", "main", "play"]

PART = 500
"""Launches of one process."""
_PROGRAM = Path(__file__).with_name("interrupted.py")
_SECONDS_A_ROUND = 5.0


def play(seed: int, first: int, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """What went wrong, a dictionary for each round, and at the end the summary of this part."""
    errors = folder / "stderr"
    with open(errors, "w+") as standard_error:
        process = subprocess.run(
            [sys.executable, _PROGRAM, *map(str, (seed, first, count))],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=standard_error,
            text=True,
            timeout=60 + _SECONDS_A_ROUND * count,
            check=False,
        )
    lines = process.stdout.splitlines()
    yield from (json.loads(line) for line in lines if line.startswith("{"))
    if process.returncode:
        text = "\n".join(line for line in lines if not line.startswith("{"))
        yield {"wrong": f"exit code {process.returncode}\n{text}\n{errors.read_text()}"}


def main(count: int, seed: int, number: int | None) -> int:
    """All rounds of a seed, or one; prints each that went wrong."""
    import tempfile

    first, count = (0, count) if number is None else (number, 1)
    began, missed = time.monotonic(), 0
    for start in range(first, first + count, PART):
        with tempfile.TemporaryDirectory() as folder:
            part = min(PART, first + count - start)
            for line in play(seed, start, part, Path(folder)):
                if "wrong" in line:
                    missed += 1
                    print(f"MISS {line.get('round', start)}\n     {line['wrong']}", flush=True)
                else:
                    print(f"ok   {line}", flush=True)
    seconds = time.monotonic() - began
    print(f"=== {missed} of {count} interrupts missed (seed {seed}) in {seconds:.1f}s ===")
    return 1 if missed else 0
