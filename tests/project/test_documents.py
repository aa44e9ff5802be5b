"""README and docs: links lead to files and headings, the API is complete, and the site has it all.

``test_blocks.py`` has what is in their blocks.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import xmp

ROOT = Path(__file__).resolve().parents[2]
COPIES = ROOT / "docs/errors"  # which the site makes of xmp/_explain
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [path for path in DOCUMENTS if path.parent != COPIES]
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


API = re.compile(r"^- `xmp\.(\w+)`$", re.MULTILINE)


def test_the_api_lists_each_public_name_once() -> None:
    assert sorted(API.findall((ROOT / "docs/api.md").read_text())) == sorted(xmp.__all__)


(HOME,) = re.findall(r'^home = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
REPOSITORY = HOME or "https://repository.invalid/xmp"


# --- the site, which ./scripts/test --docs has built ---------------------------------------------


def site(page: str) -> str:
    built = ROOT / "build/html" / page
    assert built.exists(), "./scripts/test --docs builds the site"
    return built.read_text()


@pytest.mark.docs
def test_each_name_of_the_api_has_its_signature_and_attributes() -> None:
    text = site("api.html")
    assert [name for name in xmp.__all__ if f'id="xmp.{name}"' not in text] == []
    for attribute in ("ReplicaError.failures", "JobPlan.world_size", "Event.elapsed"):
        assert f'id="xmp.{attribute}"' in text, "its text stands below it, in another module"


@pytest.mark.docs
def test_links_to_files_lead_to_the_repository() -> None:
    text = site("guide/placed-hosts.html")
    assert f'href="{REPOSITORY}/blob/main/scripts/clusters/train.sbatch"' in text
    assert f'href="{REPOSITORY}/tree/main/tests/report/texts"' in site("guide/failures.html")


@pytest.mark.docs
def test_each_page_is_in_the_navigation() -> None:
    docs = ROOT / "docs"
    pages = [path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")]
    wanted = {str(page) for page in pages if page.parts[0] != "trials"} - {"index.html"}
    assert wanted - {*re.findall(r'href="([^"#]+)"', site("index.html"))} == set()
