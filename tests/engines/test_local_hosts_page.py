"""The programs of docs/guide/local-hosts.md, run by a real pytest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.hosts

PAGE = (Path(__file__).parents[2] / "docs/guide/local-hosts.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


def test_the_programs_of_the_page(stage: Stage) -> None:
    assert len(PROGRAMS) == PAGE.count("```python") == 2
    for name, source in PROGRAMS.items():
        stage.write(source, name)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *sorted(PROGRAMS))
    report = stage.python(*command, timeout=100).out
    assert "3 passed" in report, report
