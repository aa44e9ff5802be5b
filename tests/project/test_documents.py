"""README and docs: links lead to files and headings, programs print what the pages show."""

from __future__ import annotations

import ast
import re
import socket
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.stage import Stage

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


# --- programs -------------------------------------------------------------------------------------

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
README = ROOT / "README.md"


@pytest.mark.parametrize("path", [README, *GUIDE], ids=name)
def test_programs_are_python(path: Path) -> None:
    for language, text in BLOCK.findall(path.read_text()):
        if language == "python":
            ast.parse(text)


def shown(page: str, part: str) -> tuple[str, str]:
    """The program of a page that has ``part``, and the output that follows it."""
    blocks = BLOCK.findall((ROOT / page).read_text())
    pairs = pairwise(blocks)
    found = [(a[1], b[1]) for a, b in pairs if a[0] == "python" and b[0] == "text" and part in a[1]]
    assert found, f"{page} has no program with {part!r} and an output"
    return found[0]


@pytest.mark.peers
@pytest.mark.parametrize(
    ("page", "part"),
    [
        ("README.md", "# first.py"),
        ("docs/guide/first-launch.md", "# together.py"),
        ("docs/guide/first-launch.md", "@xmp.launcher"),
        ("docs/guide/arguments-and-results.md", "results.by_rank"),
        ("docs/guide/arguments-and-results.md", "join=False"),
        ("docs/guide/arguments-and-results.md", "counts[rank] += 1"),
        ("docs/guide/replicas.md", "once_per_host"),
        ("docs/guide/replicas.md", "xmp.broadcast"),
        ("docs/guide/start-methods.md", "TORCH_LOGS"),
        ("docs/guide/devices.md", "recorded_facts"),
        ("docs/guide/output.md", "prefix=True"),
        ("docs/guide/jax.md", "process_allgather"),
        ("docs/guide/tpu.md", "recorded_facts"),
        ("docs/guide/tpu.md", "MpModelWrapper"),
    ],
)
def test_a_program_prints_what_the_page_shows(page: str, part: str, stage: Stage) -> None:
    program, output = shown(page, part)
    done = stage.python(str(stage.write(program, "train.py")), timeout=60)
    assert done.code == 0, done.err
    said = [line for line in done.out.splitlines() if not line.startswith("[Gloo]")]  # by JAX
    assert sorted(said) == sorted(output.splitlines())
    stage.gone()


@pytest.mark.failing
@pytest.mark.parametrize(
    ("page", "part"),
    [
        ("README.md", "# fails.py"),
        ("docs/guide/failures.md", "loss is nan"),
        ("docs/guide/failures.md", "ctypes"),
        ("docs/guide/timeouts.md", "max_restarts"),
    ],
)
def test_a_failure_reads_as_the_page_shows(page: str, part: str, stage: Stage) -> None:
    program, output = shown(page, part)
    path = stage.write(program, "fails.py")
    done = stage.python(str(path), timeout=60, cwd=stage.folder)
    said = re.sub(r"^xmp: the start took .*\n", "", done.err, flags=re.MULTILINE) + done.out
    for one, other in ((str(path), "FILE"), (f"on {socket.gethostname()})", "on vm)")):
        said = said.replace(one, other)
    assert plain(said) == plain(re.sub(r"/home/me/\w+\.py", "FILE", output))
    stage.gone()


def plain(text: str) -> list[str]:
    """Without what differs from run to run, and from Python to Python (the marks under a line)."""
    text = re.sub(r"pid \d+", "pid", re.sub(r"0x[0-9a-f]+", "0x", text))
    text = re.sub(r'"[^"]*/ctypes/__init__.py", line \d+', "ctypes", text)
    lines = [line for line in text.splitlines() if line.strip(" ~^")]
    return [line for line in lines if not line.startswith("Traceback")]
