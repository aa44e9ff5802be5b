"""The cells of docs/guide/notebooks.md, in a kernel; ``test_apps.py`` has marimo and Streamlit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import text_of
from tests.support.stage import ROOT

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

Kernel = Callable[..., list[dict[str, Any]]]
PAGE = (ROOT / "docs/guide/notebooks.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_cells_show_what_the_page_shows(kernel: Kernel) -> None:
    (first, shown), (fails, error) = BLOCKS[:2]
    messages = kernel(first, "print(_)", fails)  # print(_): the result of the cell before
    said = text_of(messages, 0) + text_of(messages, 1)
    assert sorted(said.splitlines()) == sorted(shown.splitlines())
    printed = [line for line in text_of(messages, 2).splitlines() if line.startswith("hello")]
    assert sorted(printed) == error.splitlines()[:2]
    (raised,) = [m["text"] for m in messages if (m["cell"], m["name"]) == (2, "error")]
    assert "raised ValueError: no such label: 11" in raised
