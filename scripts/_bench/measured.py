"""The measured side: a script that carries out one round for every line it is sent.

Started as ``python work_X.py SYSTEM``; a line {"path", "count"} on standard input is one round, a
line of figures on standard output is its outcome. Standard library only: what a script imports
beyond that is its own choice, and is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import systems
from meeting import Meeting

__all__ = ["Meeting", "serve", "system", "timed"]

Figures = dict[str, float]


def system() -> str:
    """Return the system that this process measures, also in a replica that imports the script."""
    return sys.argv[1] if len(sys.argv) > 1 else ""


def serve(measure: Callable[[Meeting], Figures]) -> None:
    """Carry out rounds until standard input ends."""
    # Replicas inherit descriptor 1: what they print must not be taken for an outcome.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": 1}), file=answers)
    for line in sys.stdin:
        print(json.dumps(measure(Meeting(**json.loads(line)))), file=answers)


def timed(
    fn: Callable[..., Any], args: Sequence[Any] = (), **options: Any
) -> Callable[[Meeting], Figures]:
    """Measure from the call until the last replica has made its mark, as most rows do."""

    def measure(meeting: Meeting) -> Figures:
        called = time.monotonic_ns()
        results = systems.run(system(), fn, (meeting, *args), meeting.count, **options)
        whole = time.monotonic_ns() - called
        figures = {"seconds": (max(meeting.times()) - called) / 1e9, "whole": whole / 1e9}
        return {**figures, **_stages(results)}

    return measure


def _stages(results: Any) -> Figures:
    """Where xmp says that the time went: the last replica to reach each stage."""
    timeline = getattr(results, "timeline", None)
    if timeline is None:
        return {}
    reached: Figures = {}
    for account in timeline.values():
        for name, seconds in account.seconds().items():
            reached[f"stage {name}"] = max(reached.get(f"stage {name}", 0.0), seconds)
    return reached
