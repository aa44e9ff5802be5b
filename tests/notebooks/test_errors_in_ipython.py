"""IPython shows an error of a call with the line of the cell alone."""

from __future__ import annotations

import pytest

from tests.support.stage import Python

PROGRAM = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.colors = "NoColor"
shell.run_line_magic("xmode", sys.argv[1])
shell.run_cell("import xmp\\ndef fails(rank):\\n    raise ValueError('of a replica')")
for line in sys.argv[2:]:
    shell.run_cell(line)
"""
REFUSED = ("xmp.spawn(fails, nprocs=0)", "xmp.plan(runtime='cdua')")
FAILED = ("xmp.spawn(fails, nprocs=2, runtime='cpu', join=False).join()",)


def shown(python: Python, mode: str, *lines: str) -> str:
    said = python("-c", PROGRAM, mode, *lines, timeout=60)
    assert said.code == 0, said.err
    return said.out + said.err


@pytest.mark.parametrize("mode", ["Context", "Verbose", "Plain"])
def test_a_refusal_shows_no_line_of_xmp(python: Python, mode: str) -> None:
    text = shown(python, mode, *REFUSED)
    assert text.count("PlanError: ") == 2, text
    assert "_spawn.py" not in text


@pytest.mark.failing
def test_a_failure_that_join_raises_shows_no_line_of_xmp(python: Python) -> None:
    text = shown(python, "Context", *FAILED, FAILED[0].replace("join()", "results()"))
    assert text.count("ReplicaRaised: rank") == 2, text
    assert "xmp/_" not in text
