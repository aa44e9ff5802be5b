"""Of failures that followed the first, the text says what the first line has not said."""

from __future__ import annotations

import pytest

from xmp._processes.messages.order import Failure
from xmp._processes.report.out_of_memory import OomFinding
from xmp._processes.report.replica_error import build

LONG = "the words of it, " * 20


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("no label 7", "no label 7", "the same"),
        ("no label 7", "no label 8", "raised ValueError: no label 8"),
        (f"{LONG} 7", f"{LONG} 8", "the same with other numbers"),
        (f"{LONG} 7", "no label 7", "raised ValueError: no label 7"),
    ],
    ids=lambda each: each[-20:],
)
def test_a_failure_that_reads_like_the_first(first: str, second: str, said: str) -> None:
    both = [
        Failure(rank, rank, 7 + rank, "raised", at=10**9, error_type="ValueError", message=message)
        for rank, message in enumerate([first, second])
    ]
    text = str(build(both, 2, "host", {}, {}, OomFinding()))
    assert f"Also failed:\n  rank 1 (+0.000 s): {said}\n" in text
