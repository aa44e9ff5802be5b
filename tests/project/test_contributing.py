"""CONTRIBUTING: short, its floors are those of the test, its first changes apply to this tree."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
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


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with all examples."""
    copy = tmp_path_factory.mktemp("changed")
    for name in ("xmp", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for change in CHANGES:
        done = run(["git", "apply", "-"], copy, change)
        again = "CONTRIBUTING.md: renew this example: apply it by hand, paste `git diff -U1`"
        assert done.returncode == 0, f"{again}\n{change}\n{done.stderr}"
    return copy


def run(command: list[str], folder: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True)


def test_the_first_changes_have_the_projects_style(changed: Path) -> None:
    for words in (["format", "--check"], ["check", "--no-cache"]):
        done = run([sys.executable, "-m", "ruff", *words, "xmp", "tests/plans"], changed)
        assert done.returncode == 0, done.stdout


def test_the_new_launcher_is_known(changed: Path) -> None:
    words = ["-q", "-p", "no:cacheprovider", "tests/plans/test_launchers.py", "-k", "kardrun"]
    done = run([sys.executable, "-m", "pytest", *words], changed)
    assert re.search(r"^6 passed", done.stdout, re.MULTILINE), done.stdout


def test_the_new_runtime_plans(changed: Path) -> None:
    command = ["env", "KARD_CARDS=0,2,2", sys.executable, "-m", "xmp", "plan"]
    done = run(command, changed)
    assert "runtime   kard: KARD_CARDS is set" in done.stdout, done.stdout + done.stderr
    assert "KARD_CARD=2" in done.stdout


def test_there_are_three_first_changes() -> None:
    assert TEXT.count("### Add ") == 3
    assert len(CHANGES) >= 3


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_room_says_where_its_tests_are(room: Path) -> None:
    said = ast.get_docstring(ast.parse(room.read_text())) or ""
    named = re.findall(r"``(tests/[^`]*)``", said)
    assert named, "Tests: ``tests/…``"
    assert [name for name in named if not any(ROOT.glob(name))] == []
