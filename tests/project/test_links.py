"""Each relative link of the documents leads to a file that exists, and to a heading of it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
INDEX = ROOT / "docs/guide/index.md"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def prose(path: Path) -> str:
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def targets(path: Path) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(path)))
    return [each for each in found if "://" not in each and not each.startswith("mailto:")]


def anchors(path: Path) -> set[str]:
    """What GitHub makes of the headings of a document, and Sphinx of those of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    lost = []
    for target in targets(path):
        file, _, anchor = target.partition("#")
        document = path.parent / file if file else path
        if not document.exists() or (anchor and anchor not in anchors(document)):
            lost.append(target)
    assert lost == []


def test_the_index_lists_each_page_of_the_guide() -> None:
    listed = [each.partition("#")[0] for each in targets(INDEX)]
    pages = {path.name for path in INDEX.parent.glob("*.md")} - {INDEX.name}
    assert pages <= {*listed}


GUIDE = [path for path in DOCUMENTS if path.parent == INDEX.parent]


@pytest.mark.parametrize("path", GUIDE, ids=name)
def test_a_page_of_the_guide_has_one_title(path: Path) -> None:
    assert prose(path).startswith("# ")
    assert len(re.findall(r"^# ", prose(path), re.MULTILINE)) == 1


@pytest.mark.parametrize("path", GUIDE, ids=name)
def test_each_block_of_the_guide_names_its_language(path: Path) -> None:
    fences = [line for line in path.read_text().splitlines() if line.startswith("```")]
    assert "```" not in fences[::2]
    assert {*fences[1::2]} <= {"```"}
