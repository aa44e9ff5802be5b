"""CONTRIBUTING's table of features names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
TABLE = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.partition("| feature |")[2].partition("\n\n")[0].splitlines()[2:]
]


def test_there_are_at_least_thirty_features() -> None:
    assert len(TABLE) >= 30


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_what_a_row_names_exists(row: list[str]) -> None:
    _, files, tests = row
    for name in re.findall(r"`([^`]+)`", files):
        assert any((ROOT / "xmp" / base / name).exists() for base in ("", "_processes")), name
    for name in re.findall(r"`([^`]+)`", tests):
        assert (ROOT / "tests" / name).exists(), name
