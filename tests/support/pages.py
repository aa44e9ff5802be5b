"""The pages of docs/coming-from: their programs, the lane that runs each, and what it prints.

A fenced block's info string has two words. The first is the language, by which GitHub colours it;
the second says what the block is:

- ``before`` begins a group: the program as the peer runs it. Each ``after`` that follows is another
  way to the same output. ``python`` blocks are whole programs; of a ``console`` block the line
  that starts with ``$`` is run.
- the name of a file (``python train.py``): what the page's ``console`` blocks run, or another test.
- ``output``: what all of the group print, in any order. Needed where no lane can run all of them.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.stage import ROOT, Stage
from tests.support.torchrun import without_abort

__all__ = ["FOLDER", "INDEX", "Page", "pages", "same_lines"]

FOLDER = ROOT / "docs" / "coming-from"
INDEX = FOLDER.with_suffix(".md")
LANES = {"torch_xla": "xla", "paddle": "paddle", "ray": "ray", "megengine": "", "torchrunx": ""}
"""The lane of a program that imports a package; "" is none: MegEngine 1.13 has wheels for Python
3.6 to 3.10, of 900 MB, and its launcher refuses CPUs; torchrunx is in the bench's environment."""
COMMANDS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "xmp": [sys.executable, "-m", "xmp"],
}
WORDS = ("before", "after")
PATIENCE = 120  # seconds for one program
NOISE = re.compile(r"peer ranks|^\S*\(.*pid=")
"""Lines of gloo, which JAX uses on CPUs, and of Ray's processes, which it shows in the driver."""
BLOCK = re.compile(r"^```([a-z]+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Program:
    """What a user would type or save, and run."""

    name: str
    """Unique among all pages, and a module's name."""
    source: str
    command: tuple[str, ...] = ()
    """Empty for a Python program, which is run as it is."""
    lane: str = "default"

    @property
    def word(self) -> str:
        return self.name.rpartition("_")[2]


@dataclass
class Group:
    """Programs that print the same."""

    programs: list[Program]
    output: list[str] | None = None

    def of(self, lane: str) -> list[Program]:
        return [each for each in self.programs if each.lane == lane]


@dataclass
class Page:
    path: Path
    text: str
    files: dict[str, str] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    """Blocks that look like programs but are not in this format."""

    @property
    def name(self) -> str:
        return self.path.stem

    def programs(self) -> Iterator[Program]:
        for group in self.groups:
            yield from group.programs


def lane_of(source: str) -> str:
    """The lane whose environment has what a program imports."""
    for node in ast.walk(ast.parse(source)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            lane = LANES.get(name.partition(".")[0])
            if lane is not None:
                return lane
    return "default"


def pages(lane: str | None = None, words: tuple[str, ...] = WORDS) -> list[Page]:
    """All pages, or those that have programs of a lane."""
    found = [_page(path) for path in sorted(FOLDER.glob("*.md"))]
    if lane is None:
        return found
    wanted = {(lane, word) for word in words}
    return [page for page in found if wanted & {(p.lane, p.word) for p in page.programs()}]


def _page(path: Path) -> Page:
    page = Page(path, path.read_text())
    for language, word, text in BLOCK.findall(page.text):
        if word in WORDS:
            _add_program(page, language, word, text)
        elif word == "output" and page.groups:
            page.groups[-1].output = sorted(text.splitlines())
        elif word.endswith(".py"):
            page.files[word] = text
        elif word or language in ("python", "console"):
            page.odd.append(f"{language} {word}")
    return page


def _add_program(page: Page, language: str, word: str, text: str) -> None:
    if word == "before":
        page.groups.append(Group([]))
    if not page.groups or language not in ("python", "console"):
        page.odd.append(f"{language} {word}")
        return
    group = page.groups[-1]
    number = f"{len(page.groups)}_{len(group.programs)}"
    name = f"{page.name.replace('-', '_')}_{number}_{word}"
    if language == "python":
        group.programs.append(Program(name, text, lane=lane_of(text)))
        return
    (line,) = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    source = "".join(page.files.values())
    group.programs.append(Program(name, source, tuple(shlex.split(line)), lane_of(source)))


def printed(stage: Stage, page: Page, program: Program, env: dict[str, str]) -> list[str]:
    """What a program prints, sorted; it ends well, and xmp and Python have nothing against it."""
    folder = stage.folder / program.name
    folder.mkdir()
    for name, text in page.files.items():
        (folder / name).write_text(text)
    (folder / f"{program.name}.py").write_text(program.source)
    first, *rest = program.command or ("python", f"{program.name}.py")
    command = [*COMMANDS[first], *rest]
    env = {**env, "PJRT_DEVICE": "CPU"} if program.lane == "xla" else env
    done = without_abort(lambda: stage.python(*command[1:], cwd=folder, env=env, timeout=PATIENCE))
    assert done.code == 0, f"{program.name}: {done.out}\n{done.err}"
    # A slow start has a line of xmp's on standard error too: no fault of the program.
    own = "|".join(map(re.escape, (f"{program.name}.py", *page.files)))
    complaint = rf"^.*(?:{own}):\d+: \w*Warning.*|^.*Warning: xmp.*"
    complaints = re.findall(complaint, done.err, re.MULTILINE)
    if program.word == "after":
        assert not complaints, f"{program.name}: {complaints}"
        stage.gone()
    return sorted(line for line in done.out.splitlines() if not NOISE.search(line))


def same_lines(
    stage: Stage,
    page: Page,
    lane: str,
    words: tuple[str, ...] = WORDS,
    env: dict[str, str] | None = None,
) -> None:
    """Run what a lane can run of a page: each group prints the same, and what the page shows.

    With the word "after" alone it is what runs on xmp. With "before" alone it is the peer's program
    and what the page shows; where that shows nothing, the first program after it.
    """
    for group in page.groups:
        programs = [each for each in group.of(lane) if each.word in words]
        if words == ("before",) and programs and group.output is None:
            programs = group.of(lane)[:2]
        said = {program.name: printed(stage, page, program, env or {}) for program in programs}
        expected = group.output or next(iter(said.values()), None)
        for name, lines in said.items():
            assert lines, f"{name} prints nothing"
            assert lines == expected, f"{name} differs from the first, or from the output: {said}"
