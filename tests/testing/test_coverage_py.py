"""coverage.py counts the lines of replicas, with the settings of docs/guide/testing.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.launching import METHODS
from tests.support.stage import Stage

pytestmark = pytest.mark.peers

PAGE = (Path(__file__).parents[2] / "docs/guide/testing.md").read_text()
(SETTINGS,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

COUNTED = """
def counted(rank):
    first = rank
    if rank == 1:
        first += 10
    return first


def fails(rank):
    if rank == 1:
        text = "of rank 1"
        raise ValueError(text)
    return rank
"""
SUITE = """
import pytest, sys, xmp
from counted import counted, fails

def test_counted():
    method = open("method").read()
    assert list(xmp.spawn(counted, nprocs=2, runtime="cpu", start_method=method)) == [0, 11]

def test_fails():
    method = open("method").read()
    for _ in range(3):
        with pytest.raises(xmp.ReplicaRaised):
            xmp.spawn(fails, nprocs=2, runtime="cpu", start_method=method)
"""


def covered(stage: Stage, method: str, test: str) -> tuple[list[int], str]:
    """The lines of counted.py that were not run, and what ``coverage combine`` said."""
    stage.write(SETTINGS, "pyproject.toml")
    stage.write(COUNTED, "counted.py")
    stage.write(method, "method")
    stage.write(SUITE, "test_suite.py")
    pytest_options = ("-q", "-p", "no:cacheprovider", "-k", test, "test_suite.py")
    ran = stage.python("-m", "coverage", "run", "-m", "pytest", *pytest_options, timeout=100)
    assert "1 passed" in ran.out, ran.out + ran.err
    stage.gone()
    combined = stage.python("-m", "coverage", "combine")
    stage.python("-m", "coverage", "json", "--include=counted.py")
    report = json.loads((stage.folder / "coverage.json").read_text())
    missing: list[int] = report["files"]["counted.py"]["missing_lines"]
    return missing, combined.out + combined.err


@pytest.mark.parametrize("method", METHODS)
def test_lines_that_replicas_run_are_counted(stage: Stage, method: str) -> None:
    missing, said = covered(stage, method, "test_counted")
    assert missing == [10, 11, 12, 13], said  # of the other function
    assert "errored" not in said


@pytest.mark.failing
@pytest.mark.parametrize("method", METHODS)
def test_lines_of_replicas_that_fail_are_counted_and_no_file_is_empty(
    stage: Stage, method: str
) -> None:
    """xmp sends SIGTERM to the replicas while the failed one saves what it has run."""
    missing, said = covered(stage, method, "test_fails")
    assert missing == [3, 4, 5, 6], said
    assert "errored" not in said
