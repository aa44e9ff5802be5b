"""CONTRIBUTING's tables: the features name files that exist, the floors are those of the test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

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


def missing() -> Iterator[str]:
    """The files that a row names and that are not there."""
    for feature, files, tests in TABLE:
        for name in re.findall(r"`([^`]+)`", files):
            if not any((ROOT / "xmp" / base / name).exists() for base in ("", "_processes")):
                yield f"{feature}: xmp/{name}"
        for name in re.findall(r"`([^`]+)`", tests):
            if not (ROOT / "tests" / name).exists():
                yield f"{feature}: tests/{name}"


def test_what_the_rows_name_exists() -> None:
    assert [*missing()] == []


def test_the_floors_are_those_that_the_test_holds() -> None:
    floors = [set(re.findall(r"\w+", row[1])) for row in rows("floor")]
    assert floors == [*reversed(FLOORS)]
