"""The programs of docs/guide/testing.md, run by a real pytest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.peers

PAGE = (Path(__file__).parents[2] / "docs/guide/testing.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
FAILING = {"test_errors.py", "test_timeouts.py"}
"""Whose launches fail."""


def ran(stage: Stage, names: set[str], *options: str) -> str:
    for name in names:
        stage.write(PROGRAMS[name], name)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *sorted(names))
    return stage.python(*command, timeout=100).out


def test_each_program_has_a_name() -> None:
    assert len(PROGRAMS) == PAGE.count("```python") == 7
    assert {*PROGRAMS} >= FAILING


@pytest.mark.parametrize("options", [("-n", "2"), ("--capture=sys", "-p", "no:faulthandler")])
def test_the_programs_of_the_page(stage: Stage, options: tuple[str, ...]) -> None:
    report = ran(stage, {*PROGRAMS} - FAILING, *options)
    assert re.search(r"9 passed, 1 skipped|10 passed", report), report  # skipped without a GPU


@pytest.mark.failing
def test_the_programs_of_the_page_that_fail(stage: Stage) -> None:
    assert "2 passed" in (report := ran(stage, FAILING)), report


HANGS = """
import threading, xmp

def waits(rank):
    threading.Event().wait()

def test_hangs():
    xmp.spawn(waits, nprocs=2, runtime="cpu")

def test_is_next():
    assert list(xmp.spawn(abs, nprocs=2, runtime="cpu")) == [0, 1]
"""


@pytest.mark.failing
@pytest.mark.parametrize("kind", ["signal", "thread"])
def test_after_a_timeout_of_pytest_no_replica_is_left(stage: Stage, kind: str) -> None:
    stage.write(HANGS, "test_hangs.py")
    options = ("-p", "no:cacheprovider", "--timeout=4", f"--timeout-method={kind}")
    done = stage.python("-m", "pytest", "-q", *options, "test_hangs.py", timeout=100)
    if kind == "signal":
        assert "1 failed, 1 passed" in done.out, done.out
        assert re.search(r"^test_hangs\.py:8: Failed$", done.out, re.MULTILINE)
    else:
        assert "Stack of MainThread" in done.out + done.err
        assert "passed" not in done.out
    stage.gone()
