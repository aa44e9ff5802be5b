"""The fenced blocks of README and docs: which of them are run, how, and what they have to show.

A Python block is a program. It is saved under the name in its first line (``# train.py``), or as
train.py, and run as a script in a fresh process; the ``text`` block that follows is what it prints.
Where ``console`` blocks that follow run its file (``$ xmp run -n 4 ddp.py``), these do instead.
A block that ends with a bare call of ``xmp.spawn`` is a cell (notebooks/test_cells_of_pages.py).
Files named ``test_…`` are for pytest. Lines at a debugger's prompt are typed.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.support.stage import ROOT

__all__ = ["Block", "Command", "Program", "blocks", "commands", "pages", "programs"]

FENCE = re.compile(r"^```([a-z]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("console", "sh")
PROMPT = re.compile(r"^(?:\w+)?\$ ")
RUNS_A_FILE = re.compile(
    r"(?:python|xmp run|torchrun)(?: -n \d+| --nproc-per-node=\d+)? (\w+\.py)\b"
)
RUNS_ALONE = re.compile(r"xmp (?:plan|doctor|facts|explain|--help)\b|xmp$|ls ")
ELSEWHERE = ("docs/coming-from/", "docs/trials/", "docs/errors/")
"""Folders in a format of their own (tests/support/pages.py), of records, and of copies."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A line of a shell block, and what the page shows below it."""

    block: Block
    line: str
    shown: str = ""

    @property
    def file(self) -> str:
        """The program of the page that it runs."""
        found = RUNS_A_FILE.match(self.line)
        return found[1] if found else ""

    @property
    def runs_alone(self) -> bool:
        return RUNS_ALONE.match(self.line) is not None


@dataclass
class Program:
    block: Block
    name: str
    shown: str = ""
    commands: list[Command] = field(default_factory=list)
    """What the page does with it, where that is more than ``python`` and its name."""

    @property
    def is_cell(self) -> bool:
        last = ast.parse(self.block.text).body[-1]
        return isinstance(last, ast.Expr) and ast.unparse(last).startswith("xmp.spawn(")

    @property
    def is_test(self) -> bool:
        return self.name.startswith("test_")


def pages() -> list[str]:
    folders = (ROOT / "docs", ROOT / "xmp/_explain")
    found = [ROOT / "README.md", *(page for each in folders for page in sorted(each.rglob("*.md")))]
    names = [str(path.relative_to(ROOT)) for path in found]
    return [name for name in names if not name.startswith(ELSEWHERE)]


@cache
def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """The lines of a shell block: of a console those with a prompt, with what they print."""
    if block.language == "sh":
        joined = block.text.replace("\\\n", " ")
        return [Command(block, line) for line in joined.splitlines() if line.strip()]
    found: list[Command] = []
    for line in block.text.splitlines():
        if PROMPT.match(line):
            found.append(Command(block, PROMPT.sub("", line)))
        else:
            last = found.pop()
            found.append(Command(block, last.line, f"{last.shown}{line}\n"))
    return found


def programs(page: str) -> Iterator[Program]:
    """The Python blocks of a page, each with the blocks that show what it does."""
    last: Program | None = None
    below = False  # whether the block before this one was the program itself
    for block in blocks(page):
        if block.language == "python":
            if last is not None:
                yield last
            name = re.match(r"# (\w+\.py)\n", block.text)
            last, below = Program(block, name[1] if name else "train.py"), True
            continue
        if last is not None and block.language == "text" and below:
            last.shown = block.text
        elif last is not None and block.language == "console":
            last.commands += [
                each
                for each in commands(block)
                if each.file == last.name or each.line.startswith("ls ")
            ]
        below = False
    if last is not None:
        yield last


def words(line: str) -> list[list[str]]:
    """The commands of a line of shell, each as its words, without variables set before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";|&()"):
            found.append([])
        elif found[-1] or not re.match(r"\w+=", word):
            found[-1].append(word)
    return [each[: each.index(">")] if ">" in each else each for each in found if each]
