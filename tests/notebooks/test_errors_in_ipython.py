"""IPython shows an error of a call with the line of the cell alone, and debugs it there."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.stage import Python, Stage

PROGRAM = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("xmode", sys.argv[1])
shell.run_cell("import xmp\\ndef fails(rank):\\n    raise ValueError('of a replica')")
for line in sys.argv[2:]:
    shell.run_cell(line)
"""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Colab's IPython 7 always colours
REFUSED = ("xmp.spawn(fails, nprocs=0)", "xmp.plan(runtime='cdua')")
BAD_TYPES = (
    "xmp.spawn(fails, nproc=2)",
    "xmp.spawn(fails, nprocs='2')",
    "xmp.spawn(fails, (1, 2), 2)",
)
IN_THIS_PROCESS = ("xmp.spawn(fails, nprocs=1)",)
FAILED = ("xmp.spawn(fails, nprocs=2, runtime='cpu', join=False).join()",)


def shown(python: Python, mode: str, *lines: str) -> str:
    said = python("-c", PROGRAM, mode, *lines, timeout=60)
    assert said.code == 0, said.err
    return COLOURS.sub("", said.out + said.err)


@pytest.mark.parametrize("mode", ["Context", "Verbose", "Plain"])
def test_a_refusal_shows_no_line_of_xmp(python: Python, mode: str) -> None:
    text = shown(python, mode, *REFUSED)
    assert text.count("PlanError: ") == 2, text
    assert "_calls/spawn.py" not in text


@pytest.mark.parametrize("mode", ["Context", "Verbose", "Plain"])
def test_a_bad_argument_shows_no_line_of_xmp(python: Python, mode: str) -> None:
    text = shown(python, mode, *BAD_TYPES)
    assert text.count("TypeError: ") == len(BAD_TYPES), text
    assert "_calls/spawn.py" not in text


def test_the_program_s_own_error_shows_its_frames_alone(python: Python) -> None:
    text = shown(python, "Context", *IN_THIS_PROCESS)
    assert "ValueError: of a replica" in text
    assert "raise ValueError('of a replica')" in text
    assert "_calls/spawn.py" not in text


MARK = "=" * 20
WHERE = (
    "import sys; frames = sys.last_value.__traceback__",
    "while frames.tb_next: frames = frames.tb_next",
    "print('in', frames.tb_frame.f_code.co_name, 'fails' in frames.tb_frame.f_globals)",
)
LINES = {
    "joined": FAILED,
    "debugged": WHERE,
    "results": (FAILED[0].replace("join()", "results()"),),
    "refused": (REFUSED[0], *WHERE),
}


@pytest.fixture(scope="module")
def failed(shared_stage: Stage) -> dict[str, str]:
    """What one shell shows of ``LINES``, with the launcher's standard error where it came."""
    lines = [line for each in LINES.values() for line in (*each, f"print('{MARK}')")]
    process = shared_stage.start_command(
        sys.executable, "-u", "-c", PROGRAM, "Context", *lines,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said = shared_stage.outcome(process, 60)
    assert said.code == 0, said.out
    texts = COLOURS.sub("", said.out).split(MARK)
    assert len(texts) == len(LINES) + 1, said.out
    return dict(zip(LINES, texts))


@pytest.mark.failing
@pytest.mark.parametrize("line", ["refused", "debugged"])
def test_the_debugger_begins_at_the_call(failed: dict[str, str], line: str) -> None:
    # IPython 7 names a cell by its line.
    assert re.search(r"in <(module|cell line: \d+)> True", failed[line])


@pytest.mark.failing
def test_a_failure_is_said_once(failed: dict[str, str]) -> None:
    text = failed["joined"]
    assert "raise ValueError('of a replica')" in text
    # The first line, that of the other rank, and the last.
    assert text.count("ValueError: of a replica") <= 3, text
    assert "direct cause" not in text


@pytest.mark.failing
def test_a_failure_that_join_raises_shows_no_line_of_xmp(failed: dict[str, str]) -> None:
    for line in ("joined", "results"):
        assert failed[line].count("ReplicaRaised: rank") == 1, failed[line]
        assert "xmp/_" not in failed[line]
