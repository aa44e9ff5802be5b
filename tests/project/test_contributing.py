"""CONTRIBUTING's tables: the features name files that exist, the floors are those of the test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project.test_floors import FLOORS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The rows of the table whose head begins with this cell."""
    lines = TEXT.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


TABLE = rows("feature")


def test_there_are_at_least_thirty_features() -> None:
    assert len(TABLE) >= 30


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_what_a_row_names_exists(row: list[str]) -> None:
    _, files, tests = row
    for name in re.findall(r"`([^`]+)`", files):
        assert any((ROOT / "xmp" / base / name).exists() for base in ("", "_processes")), name
    for name in re.findall(r"`([^`]+)`", tests):
        assert (ROOT / "tests" / name).exists(), name


def test_the_floors_are_those_that_the_test_holds() -> None:
    floors = [set(re.findall(r"\w+", row[1])) for row in rows("floor")]
    assert floors == [*reversed(FLOORS)]
