"""The text and the number by which a process carries the name of its launcher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xmp._os import marks


def test_only_limits_with_the_tag_name_a_launcher() -> None:
    mark = marks.mine()
    assert mark.limit is not None
    assert marks.launcher_of(mark.limit) == mark.launcher
    for other in (0, 1024, 10**9, 2**63 - 1, 2**64 - 1, mark.limit ^ 1 << 60):
        assert marks.launcher_of(other) is None
    for none in (0, -1, 1 << 36):
        assert replace(mark, started=none).limit is None
    assert replace(mark, pid=0).limit is None


@pytest.mark.parametrize("program", ["", "/home/me/a train.1-2.py", "notebook \u65e5.ipynb"])
def test_a_mark_names_the_program(program: str) -> None:
    mark = replace(marks.mine(), program=program)
    assert marks.Mark.parse(str(mark)) == mark
    assert marks.Mark.parse(f"{mark}-123-abc") != mark


@pytest.mark.parametrize("program", [".zz", "." + "61" * 81, ".61.61", ".61.", "..61"])
def test_what_no_launcher_writes_is_no_mark(program: str) -> None:
    assert marks.Mark.parse(str(replace(marks.mine(), program="")) + program) is None
