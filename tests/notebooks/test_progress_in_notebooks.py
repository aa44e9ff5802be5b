"""A start that takes long is shown in the cell: one line, which is redrawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import BEGIN, displays_of

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

Kernel = Callable[..., list[dict[str, Any]]]
LINE = re.compile(r"xmp: (\d+\.\d) s: (.*)")
ENTERED = re.compile(LINE.pattern.replace(".*", "(2 running|1 running, 1 done|2 done)"))
SLOW = """
class Slow:
    def __reduce__(self):
        return wait_for, ('shown',)
"""


def lines_of(messages: list[dict[str, Any]], cell: int) -> list[str]:
    shown = displays_of(messages, cell) + displays_of(messages, cell, "update")
    return [data["text/plain"] for data in shown]


def test_after_two_seconds_the_cell_has_a_line_that_is_redrawn(shared_kernel: Kernel) -> None:
    cell = f"{SLOW}\nprint([*start(lambda rank, _: rank, args=(Slow(),), progress=None)])"
    warm = f"{BEGIN}\nstart(lambda rank: rank)"  # on a slow host the first one imports for 2 s
    messages = shared_kernel(warm, cell, touch={"waits": "shown", "xmp: 2.": "shown"})
    first, *updates = lines_of(messages, 1)
    assert LINE.fullmatch(first)[1] >= "2.0"  # type: ignore[index]
    assert "2 starting" in first
    assert ENTERED.fullmatch(updates[-1]), updates
    assert len({m["transient"]["display_id"] for m in messages if "transient" in m}) == 1


def test_a_fresh_interpreter_says_what_it_does(shared_kernel: Kernel) -> None:
    cell = (
        f"{SLOW}\nstart(lambda rank, _: rank, args=(Slow(),), progress=None, start_method='spawn')"
    )
    lines = lines_of(shared_kernel(BEGIN, cell, touch={"importing": "shown"}), 1)
    assert any("2 importing" in line for line in lines), lines


@pytest.mark.parametrize(("progress", "count"), [(True, 1), (None, 0), (False, 0)])
def test_a_quick_start_shows_it_if_asked(progress: bool, count: int, shared_kernel: Kernel) -> None:
    messages = shared_kernel(BEGIN, f"start(lambda rank: rank, progress={progress})")
    lines = lines_of(messages, 1)
    assert bool(lines) == bool(count), messages
    assert not count or ENTERED.fullmatch(lines[-1]), lines
