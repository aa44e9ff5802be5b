"""The cells of docs/coming-from/accelerate.md, in a kernel, under both launchers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import text_of
from tests.support.stage import ROOT

pytestmark = [pytest.mark.first_pass, pytest.mark.failing, pytest.mark.peers]

Kernel = Callable[..., list[dict[str, Any]]]
PAGE = (ROOT / "docs" / "coming-from" / "accelerate.md").read_text()
THEIRS = "from accelerate import notebook_launcher"
OURS = "from xmp.compat.accelerate import notebook_launcher"


def launching_cell(import_line: str, *more: str) -> str:
    """The page's last cell under one of the imports."""
    [block] = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    old, new, _, call = block.splitlines()
    assert (old, new) == (f"-{THEIRS}", f"+{OURS}")
    given = "".join(f", {option}" for option in more)
    return f"{import_line}\nprint({call.strip()[:-1]}{given}))"


def test_the_pages_cells_print_the_same_under_both_launchers(kernel: Kernel) -> None:
    [cells] = re.findall(r"^```python cells.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    used = "torch.ones(3, requires_grad=True).sum().backward()"
    no_fixed_port = ("rdzv_backend='c10d'", "rdzv_endpoint='localhost:0'")
    theirs, ours = launching_cell(THEIRS, *no_fixed_port), launching_cell(OURS)
    made = "accelerator = Accelerator(cpu=True)"
    env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    messages = kernel(cells, theirs, used, ours, ours, made, ours, env=env)
    said = [text_of(messages, cell).splitlines() for cell in (1, 3, 4)]
    assert [lines.pop(0) for lines in said] == [
        "Launching training on 2 CUDAs.", *["Launching training on 2 CPUs."] * 2
    ]  # fmt: skip
    assert said[0] == said[1] == said[2]
    assert re.fullmatch(r"epoch 0: loss [01]\.\d{4}, accuracy 0\.\d{3}", said[0][0])
    assert said[0][2:] == ["None"]
    [error] = [m for m in messages if m["name"] == "error"]
    assert error["cell"] == 6
    assert error["text"].startswith("To launch a multi-device training from your notebook")
