"""The programs of docs/coming-from/jax.md: before and after print the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.stage import ROOT, Stage

PAGE = Path(ROOT, "docs/coming-from/jax.md")


def programs(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def said(stage: Stage, source: str, *arguments: str) -> list[str]:
    """What it prints; gloo, which JAX uses on CPUs, writes lines of its own."""
    out = stage.run(source, *arguments, timeout=90).out
    return [line for line in out.splitlines() if line and "peer ranks" not in line]


def test_before_and_after_print_the_same(stage: Stage) -> None:
    (before,), (after,) = programs("python before"), programs("python after")
    expected = ["2 processes: [[0, 1, 2], [1, 2, 3]]"]
    assert said(stage, before) == expected
    assert said(stage, after) == expected


@pytest.mark.slow
def test_the_training_goes_on_where_it_was(stage: Stage) -> None:
    (program,) = programs("python")
    found = said(stage, program, str(stage.folder / "checkpoints"))
    assert found == ["went on after step 20", "loss below 0.001: [True, True]"]
