"""A cell that is interrupted shows the user's line, and where the replicas were."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import BEGIN

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

Kernel = Callable[..., list[dict[str, Any]]]


def test_the_line_of_the_cell_and_of_each_group_of_ranks(kernel: Kernel) -> None:
    cell = """
def fn(rank):
    if rank == 0:
        while not os.path.exists('in 1'): time.sleep(0.01)
        print('here', flush=True)
    else:
        open('in 1', 'w').close()
    wait_for('never')
xmp.spawn(fn, nprocs=2, runtime='cpu')"""
    (error,) = [m for m in kernel(BEGIN, cell, interrupt="here") if m["name"] == "error"]
    assert error["text"].startswith("the replicas were interrupted here:\nrank")
    assert "wait_for('never')" in error["text"]
    assert " in fn" in error["text"]
    shown = re.sub(r"\x1b\[[0-9;]*m", "", error["traceback"])
    assert "xmp.spawn(fn, nprocs=2, runtime='cpu')" in shown
    assert not re.findall(r"xmp/_\w+", shown), shown
