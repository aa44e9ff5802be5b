"""The pictures of the pages are those that ./scripts/pictures draws, and can be read anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "docs/pictures").glob("*.svg"))
LAUNCHES = ("process-tree", "failure", "cell")
MOST_BYTES = 60_000
NAMESPACE = "{http://www.w3.org/2000/svg}"


def drawn(kind: str, folder: Path) -> list[Path]:
    program = [sys.executable, "scripts/_pictures/main.py", kind, "--out", str(folder)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir())


def words(path: Path) -> list[str]:
    """Everything written in it; how rich parts a line into colours may change."""
    lines: dict[str, str] = {}
    for element in ElementTree.parse(path).iter(f"{NAMESPACE}text"):
        place = element.get("y", "")
        lines[place] = lines.get(place, "") + "".join(element.itertext())
    return [re.sub(r"\s+", "", line) for line in lines.values()]


def without_luck(lines: list[str]) -> list[str]:
    """Leave out how and when those ranks ended that were not the cause."""
    kept: list[str] = []
    skips = ""  # the line before which something is kept again
    for line in lines:
        if skips and line.startswith(skips):
            skips = ""
        if not skips or re.match(r"\d+cause", line):
            kept.append(line)
        if line.startswith("rankwhat"):  # a table, of fewer columns where no other has failed
            kept[-1], skips = "rank", "-----"
        elif line == "Alsofailed:":
            kept.pop()
            skips = "--"
    return kept


@pytest.mark.parametrize("kind", ["bench", "how"])
def test_a_drawing_is_kept_as_it_is_drawn(kind: str, tmp_path: Path) -> None:
    kept = {path.name: path.read_text() for path in KEPT if path.name.startswith(f"{kind}-")}
    new = {path.name: path.read_text() for path in drawn(kind, tmp_path)}
    assert new == kept, f"./scripts/pictures {kind} draws them again"


@pytest.mark.parametrize(
    "name",
    [
        "process-tree",
        "failure",
        pytest.param("cell", marks=[pytest.mark.failing, pytest.mark.slow]),
    ],
)
def test_a_picture_of_a_launch_says_what_the_launch_does(name: str, tmp_path: Path) -> None:
    (path,) = drawn(name, tmp_path)
    kept = ROOT / "docs/pictures" / path.name
    said, shown = without_luck(words(path)), without_luck(words(kept))
    assert said == shown, f"./scripts/pictures {name} draws it again"


def test_no_picture_is_left_over() -> None:
    kinds = {path.stem.partition("-")[0] for path in KEPT} - {"bench", "how"}
    assert kinds == {name.partition("-")[0] for name in LAUNCHES}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_a_picture_stands_alone_in_light_and_dark(path: Path) -> None:
    """As an image it gets nothing from the page, and nothing from the network."""
    text = path.read_text()
    assert len(text.encode()) < MOST_BYTES
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://[^\"]*|url\(|@import|<script", text) == [NAMESPACE[1:-1]]
    root = ElementTree.fromstring(text)
    title = root.find(f"{NAMESPACE}title")
    assert title is not None
    assert title.text
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for element in root.iter(f"{NAMESPACE}text"):
        size, x = float(element.get("font-size", "")), float(element.get("x", ""))
        assert size >= 12, "legible at 700 pixels"
        assert 0 < float(element.get("y", "")) < height
        wide = 0.55 * size * len("".join(element.itertext()))  # of the usual fonts
        before = {"middle": 0.5, "end": 1.0}.get(element.get("text-anchor", ""), 0)
        assert x - before * wide > 0
        assert x + (1 - before) * float(element.get("textLength", wide)) < width


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["panel", "soft"])
def test_words_stand_out_from_their_ground(
    ground: str, scheme: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WCAG's contrast of 4.5, for all colours that words have."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts/_pictures"))
    from svg import LOOKS

    faint = {}
    for look in LOOKS.keys() - {"panel", "border", "grid", "soft"}:
        pair = sorted(luminance(LOOKS[each][scheme]) for each in (look, ground))
        contrast = (pair[1] + 0.05) / (pair[0] + 0.05)
        if contrast < 4.5:
            faint[look] = round(contrast, 2)
    assert faint == {}
