"""The pages of docs/coming-from: every program runs, and each group prints the same lines.

Those that need torch_xla or Paddle are in tests/xla and tests/paddle.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import FOLDER, INDEX, Page, pages, same_lines
from tests.support.stage import ROOT, Stage

PAGES = pages()
PEERS = {
    "torch_xla", "torch-multiprocessing", "torchrun", "paddle", "megengine",
    "lightning", "accelerate", "jax", "ray-train", "torchrunx",
}  # fmt: skip
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.mark.peers
@pytest.mark.parametrize("page", pages("default", ("after",)), ids=lambda page: page.name)
def test_what_runs_on_xmp_prints_what_the_page_shows(stage: Stage, page: Page) -> None:
    same_lines(stage, page, "default", ("after",))


@pytest.mark.peers
@pytest.mark.parametrize("page", pages("default", ("before",)), ids=lambda page: page.name)
def test_the_peer_prints_the_same(stage: Stage, page: Page) -> None:
    same_lines(stage, page, "default", ("before",))


# --- the format -----------------------------------------------------------------------------------


@by_name
def test_a_page_has_programs_before_and_after(page: Page) -> None:
    assert page.odd == [], "blocks without a word that says what they are (tests/support/pages.py)"
    assert page.groups
    for group in page.groups:
        first, *others = group.programs
        assert first.word == "before"
        assert {each.word for each in others} == {"after"}


@by_name
def test_a_lane_runs_each_program(page: Page) -> None:
    for program in page.programs():
        if program.lane == "":
            assert program.word == "before"
            assert "No test runs the program *before*" in page.text
        elif program.lane != "default":
            test = ROOT / "tests" / program.lane / f"test_coming_from_{program.lane}.py"
            assert f'LANE = "{program.lane}"' in test.read_text()


@by_name
def test_programs_of_different_lanes_are_compared_with_an_output(page: Page) -> None:
    for group in page.groups:
        if len({program.lane for program in group.programs}) > 1:
            assert group.output


@by_name
def test_a_test_runs_each_file(page: Page) -> None:
    """By a console block, or in a test of its own that reads the page."""
    commands = " ".join(word for program in page.programs() for word in program.command)
    if any(name not in commands for name in page.files):
        tests = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
        assert any(f"coming-from/{page.name}.md" in re.sub(r'" */ *"', "/", text) for text in tests)


def test_the_pages_of_all_peers_are_there() -> None:
    assert {page.name for page in PAGES} == PEERS


def test_the_index_links_each_page() -> None:
    linked = re.findall(rf"\]\({FOLDER.name}/([\w-]+)\.md\)", INDEX.read_text())
    assert {*linked} == {page.name for page in PAGES}


@by_name
def test_a_page_leads_to_the_guide(page: Page) -> None:
    assert "Guide: [" in page.text.splitlines()[-1]
    assert "](../guide/" in page.text.splitlines()[-1]


# --- types ----------------------------------------------------------------------------------------


def test_the_programs_are_typed(tmp_path: Path) -> None:
    """With the project's settings, which skip the frameworks: what these define is Any there."""
    for page in PAGES:
        for program in page.programs():
            (tmp_path / f"{program.name}.py").write_text(program.source)
        for name, text in page.files.items():
            (tmp_path / f"{page.name.replace('-', '_')}_{name}").write_text(text)
    written = sorted(map(str, tmp_path.iterdir()))
    any_of_frameworks = ["--allow-subclassing-any", "--allow-untyped-decorators"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *any_of_frameworks, *written],
        cwd=ROOT, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(written)} source files" in done.stdout
