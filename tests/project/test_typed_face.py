"""Type checkers know the public functions: they refuse mistakes and accept right uses.

Both run as a user runs them: in another folder, without this project's settings.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import xmp

TYPED = Path(__file__).with_name("typed")
MISTAKES = TYPED / "mistakes.py"
RIGHT = TYPED / "right.py"

Reports = list[tuple[Path, int, str]]
"""File, line and message of each complaint."""


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(folder: Path) -> Reports:
    output = run(["mypy", "--strict", "--cache-dir=cache", str(RIGHT), str(MISTAKES)], folder)
    found = re.findall(r"^(.*?):(\d+): error: (.*)", output, re.MULTILINE)
    return [((folder / path).resolve(), int(line), words) for path, line, words in found]


def basedpyright(folder: Path) -> Reports:
    options = ["--outputjson", "--pythonpath", sys.executable]
    output = json.loads(run(["basedpyright", *options, str(RIGHT), str(MISTAKES)], folder))
    return [
        (Path(each["file"]), each["range"]["start"]["line"] + 1, each["message"])
        for each in output["generalDiagnostics"]
    ]


@pytest.fixture(scope="module", params=[mypy, basedpyright])
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    tool: Callable[[Path], Reports] = request.param
    return tool(tmp_path_factory.mktemp("program"))


def test_right_uses_are_accepted(reports: Reports) -> None:
    assert [each for each in reports if each[0] != MISTAKES] == []


def test_each_mistake_is_refused(reports: Reports) -> None:
    lines = MISTAKES.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert len(wrong) > 20
    assert {line for path, line, _ in reports if path == MISTAKES} == wrong


def test_each_keyword_of_spawn_is_among_the_right_uses() -> None:
    body = RIGHT.read_text().partition("def every_keyword")[2].partition("\n    )\n")[0]
    used = set(re.findall(r"^        (\w+)=", body, re.MULTILINE))
    assert used == set(inspect.signature(xmp.spawn).parameters) - {"fn"}
