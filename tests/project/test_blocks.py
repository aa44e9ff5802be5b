"""Blocks of README and docs: programs run and print what the page shows, commands are known.

``tests/support/blocks.py`` says what is run how. What is not run here is in one of these tables.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import pytest

from tests.support.blocks import (
    SHELL,
    Command,
    Program,
    blocks,
    commands,
    pages,
    programs,
    words,
)
from tests.support.stage import ROOT, Outcome, Stage
from tests.support.torchrun import without_abort
from xmp.__main__ import _parser
from xmp.testing._recorded import FOLDER

PAGES = pages()
PROGRAMS = [each for page in PAGES for each in programs(page)]
COMMANDS = [
    each
    for page in PAGES
    for block in blocks(page)
    if block.language in SHELL
    for each in commands(block)
]

RUN_BY = {
    "docs/guide/local-hosts.md": "tests/engines/test_local_hosts_page.py",
    "docs/guide/placed-hosts.md": "tests/launcher/test_placed_hosts_page.py",
    "docs/guide/ray.md": "tests/ray/test_coming_from_ray.py",
    'docs/guide/ssh.md: engine="slurm"': "tests/slurm/test_slurm_engine.py",
    "docs/guide/ssh.md": "tests/ssh/test_ssh_page.py",
    "docs/guide/testing.md": "tests/testing/test_testing_page.py",
    "docs/guide/watch.md: def export(": "tests/launcher/test_watch_page.py",
    "docs/guide/first-launch.md: load_digits": "tests/project/test_scripts.py",
}
"""Programs that other tests run: on clusters, in other environments, with stand-ins; by page, or by
page and a part of the program."""

NOT_RUN = {
    "docs/guide/timeouts.md: timeout=10": "a slow start is longer: launcher/test_timeouts.py",
    "docs/guide/timeouts.md: xmp.preempted()": "waits for a SIGTERM: launcher/test_preemption.py",
    "docs/guide/debug.md: debugpy.listen": "waits for an editor: launcher/test_patches.py",
}
"""Programs that no test runs as they are, and why."""

PLANNED = {"docs/guide/devices.md: xmp plan -n 2": {"cpus": [0, 1], "address": "192.0.2.2"}}
"""Commands that say what this host is: for the recorded facts of a laptop, with these changes."""

DIFFERS = {
    "docs/guide/commands.md: xmp doctor": r"^note: .*\n",
    "docs/guide/first-launch.md: xmp doctor": r"^note: .*\n",
    "docs/guide/start-methods.md: import random": r"\[(?!331)\d+, \d+\]",
}
"""What is another text in every run, beside ``plain``: it is not compared."""


def fits(row: str, text: str, page: str) -> bool:
    of, _, part = row.partition(": ")
    return of == page and part in text


def row_of(table: dict[str, Any], text: str, page: str) -> Any:
    """The entry of a block in a table, or ""."""
    return next((table[row] for row in table if fits(row, text, page)), "")


def here(program: Program) -> bool:
    given = program.block.text, program.block.page
    return not (program.is_cell or row_of(RUN_BY, *given) or row_of(NOT_RUN, *given))


def title(each: Program | Command) -> str:
    return f"{each.block.where} {each.line if isinstance(each, Command) else each.name}"


# --- in the default lane: each block has its way ----------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS, ids=title)
def test_a_program_is_python(program: Program) -> None:
    ast.parse(program.block.text)


def test_each_row_of_the_tables_has_its_block() -> None:
    texts = [(each.block.text, each.block.page) for each in PROGRAMS]
    lines = [(each.line, each.block.page) for each in COMMANDS]
    for row in [*RUN_BY, *NOT_RUN, *PLANNED, *DIFFERS]:
        assert any(fits(row, *each) for each in [*texts, *lines]), row


def test_the_tests_that_run_programs_of_a_page_read_it() -> None:
    for row, test in RUN_BY.items():
        page = row.partition(": ")[0].removeprefix("docs/")
        assert page in re.sub(r'" */ *"', "/", (ROOT / test).read_text()), row


@pytest.mark.parametrize("command", COMMANDS, ids=title)
def test_a_command_is_understood(command: Command) -> None:
    """By the shell, and its options by xmp's own parser."""
    done = subprocess.run(["sh", "-n", "-c", command.line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, *arguments in words(command.line):
        if name == "xmp" and arguments:
            options, unknown = _parser()[0].parse_known_args(arguments)
            assert not unknown


# --- in the lane "docs": what runs ------------------------------------------------------------


@pytest.fixture
def two_cores() -> Iterator[None]:
    """A launch without ``nprocs`` has as many replicas as here, wherever it is tested."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(mine)[:2])
    yield
    os.sched_setaffinity(0, mine)


NOISE = re.compile(
    r"^(?:\[Gloo\]|xmp: the start took |[WE]\d{4} \S+ \d+ \S*torch/distributed/).*\n", re.MULTILINE
)
GLUED = re.compile(r"(?<=\))(?=Results\()")
"""Where two processes without buffers, as torchrun's, have written into one line."""
PROMPT = r"\(Pdb[^)]*\) ?"
TYPED = re.compile(rf"^{PROMPT}(.*)\n", re.MULTILINE)


def plain(text: str, differs: str) -> list[str]:
    """Sorted lines and columns, without what differs from run to run and from Python to Python."""
    text = NOISE.sub("", text)
    text = re.sub(differs, "", text, flags=re.MULTILINE) if differs else text
    text = GLUED.sub("\n", text)
    text = re.sub(r"pid \d+", "pid", re.sub(r"0x[0-9a-f]+", "0x", text))
    text = re.sub(r'"[^"]*/ctypes/__init__.py", line \d+', "ctypes", text)
    return sorted(each.strip() for each in re.split(r"\n|  +", text) if each.strip(" ~^"))


def outcome(stage: Stage, command: list[str], typed: str) -> Outcome:
    """Run a command with its two streams as one, in the folder of the stage."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    streams = {"stdin": PIPE, "stdout": PIPE, "stderr": STDOUT}
    process = stage.start_command(*command, env={"PATH": path}, **streams)
    done = stage.outcome(process, timeout=170, stdin=typed)
    return replace(done, err=done.out)


def check(stage: Stage, command: list[str], shown: str, differs: str = "") -> None:
    """Run a command; compare what it prints with what the page shows, if it shows something."""
    typed = "".join(f"{line}\n" for line in TYPED.findall(shown))
    done = without_abort(lambda: outcome(stage, command, typed))
    said = re.sub(PROMPT, "", done.out).replace(f"{stage.folder}/", "/home/me/")
    said = said.replace(f"on {socket.gethostname()})", "on vm)")
    fails = "Traceback (" in shown and command[0] != "sh"
    assert (done.code != 0) == fails, said
    if shown:
        assert plain(said, differs) == plain(TYPED.sub("", shown), differs)
    stage.gone()


def run(stage: Stage, program: Program) -> None:
    text, page = program.block.text, program.block.page
    differs = row_of(DIFFERS, text, page)
    if program.is_test:
        check(stage, [sys.executable, "-m", "pytest", "-q", program.name], "")
    elif not any(each.file for each in program.commands):
        check(stage, [sys.executable, program.name], program.shown, differs)
    for command in program.commands:
        check(stage, ["sh", "-c", command.line], command.shown, differs)


TO_RUN = {
    f"{each.block.text} {[c.line for c in each.commands]}": each for each in PROGRAMS if here(each)
}
"""One of those that are the same on two pages."""


@pytest.mark.docs
@pytest.mark.parametrize("program", [*TO_RUN.values()], ids=title)
def test_a_program_prints_what_the_page_shows(
    program: Program, stage: Stage, two_cores: None
) -> None:
    for each in programs(program.block.page):
        stage.write(each.block.text, each.name)
    stage.write(program.block.text, program.name)
    run(stage, program)


@pytest.mark.docs
@pytest.mark.parametrize(
    "command",
    [each for each in COMMANDS if each.runs_alone and not each.line.startswith("ls ")],
    ids=title,
)
def test_a_command_prints_what_the_page_shows(
    command: Command, stage: Stage, two_cores: None
) -> None:
    line, page = command.line, command.block.page
    changes = row_of(PLANNED, line, page)
    if changes:
        facts = {**json.loads((FOLDER / "laptop.json").read_text()), **changes}
        line += f" --facts {stage.write(json.dumps(facts), 'facts.json')}"
    check(stage, ["sh", "-c", line], command.shown, row_of(DIFFERS, command.line, page))
