"""Run hangs by name, or all, and compare what xmp finds with ``expected.json``.

python -m tests.hangs.main [NAME...]
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xmp

from .cases import CASES, Case, run

__all__ = ["EXPECTED", "Found", "hang", "main"]

EXPECTED = json.loads(Path(__file__).with_name("expected.json").read_text())
_SECONDS = 4.0
"""How long each may hang. A launch of JAX, of 64 ranks or of two hosts takes a second to start."""


@dataclass(frozen=True)
class Found:
    """What xmp found out about one hang."""

    suspects: tuple[int, ...]
    text: str
    notices: tuple[str, ...] = ()
    """What was said before the limit had passed."""

    def is_right(self, name: str) -> bool:
        """Return whether the culprit is right, and where it is."""
        expected = EXPECTED[name]
        return list(self.suspects) == expected["suspects"] and expected["words"] in self.text

    def is_wrong(self, name: str) -> bool:
        """Return whether a rank is named that is none of the culprits, without "may"."""
        head = self.text.partition("\n")[0]
        named = set(self.suspects) - set(EXPECTED[name]["suspects"])
        return bool(named) and "may " not in head


def judged(name: str) -> Found:
    """Run a case; once more with more time where nothing is named, wrongly or rightly.

    On a busy machine the ranks may not be where they hang when the limit has passed.
    """
    found = hang(CASES[name])
    if found.is_right(name) or found.is_wrong(name):
        return found
    return hang(CASES[name], times=4)


def hang(case: Case, times: int = 1) -> Found:
    """Run one case until so many times its limit, and return what the error says."""
    notices: list[str] = []

    def note(event: xmp.Event) -> None:
        if event.name == "waiting":
            notices.append(event.message)

    options: dict[str, Any] = {
        "nprocs": case.nprocs, "runtime": case.runtime, "grace": 0.5, "events": note,
    }  # fmt: skip
    try:
        if case.hosts > 1:
            xmp.launch(
                run, (case,), hosts=case.hosts, engine="local", timeout=(_SECONDS + 3) * times,
                **options,
            )  # fmt: skip
        else:
            slow = case.runtime == "jax" or case.nprocs > 8 or case.meeting == "torch_backward"
            xmp.spawn(run, (case,), timeout=(_SECONDS + 3 * slow) * times, **options)
    except xmp.ReplicaError as error:
        return Found(error.suspects, str(error), tuple(notices))
    return Found((), "it did not hang")


def main(names: list[str]) -> int:
    """Run the named cases, or all; print a line for each, and how many are right."""
    xmp.preload("torch", "jax")
    os.environ["XMP_HANG_NOTICE"] = "2"
    right = wrong = noticed = 0
    for name in names or CASES:
        began = time.monotonic()
        found = judged(name)
        right += found.is_right(name)
        wrong += found.is_wrong(name)
        word = "right" if found.is_right(name) else "WRONG" if found.is_wrong(name) else "missed"
        seconds = time.monotonic() - began
        said = f"noticed {len(found.notices)}x" if found.notices else "not noticed"
        noticed += bool(found.notices)
        head = found.text.splitlines()[0]
        print(f"{word:6} {seconds:5.1f} s, {said}: {name}: {head}", flush=True)
    print(f"{right} right, {wrong} wrong names, {noticed} noticed, of {len(names or CASES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
