"""CONTRIBUTING: short, its floors are those of the test, its first changes apply to this tree."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.project.test_floors import FLOORS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
MOST_BYTES = 12_000
CHANGES = re.findall(r"```diff\n(.*?)```", TEXT, re.DOTALL)
ROOMS = sorted(
    path
    for path in (ROOT / "xmp").rglob("__init__.py")
    if path.parent.name not in ("xmp", "compat", "typed") and len(list(path.parent.iterdir())) > 4
)


def test_it_can_be_read_in_one_sitting() -> None:
    assert len(TEXT.encode()) <= MOST_BYTES


def test_the_floors_are_those_that_the_test_holds() -> None:
    table = TEXT.partition("| floor |")[2].partition("\n\n")[0].splitlines()[2:]
    rooms = [line.strip("|").split("|")[1] for line in table]
    assert [set(re.findall(r"\w+", names)) for names in rooms] == [*reversed(FLOORS)]


@pytest.mark.parametrize("change", CHANGES)
def test_a_first_change_applies(change: str) -> None:
    done = subprocess.run(
        ["git", "apply", "--check", "-"],
        cwd=ROOT, input=change, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_there_are_three_first_changes() -> None:
    assert TEXT.count("### Add ") == 3
    assert len(CHANGES) >= 3


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_room_says_where_its_tests_are(room: Path) -> None:
    said = ast.get_docstring(ast.parse(room.read_text())) or ""
    named = re.findall(r"``(tests/[^`]*)``", said)
    assert named, "Tests: ``tests/…``"
    assert [name for name in named if not any(ROOT.glob(name))] == []
