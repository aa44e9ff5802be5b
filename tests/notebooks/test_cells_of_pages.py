"""The cells that README and docs show, in a real kernel: each gets what its page shows."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.blocks import Program, pages, programs
from tests.support.notebook_kernel import text_of

pytestmark = pytest.mark.docs

Kernel = Callable[..., list[dict[str, Any]]]
CELLS = {page: [each for each in programs(page) if each.is_cell] for page in pages()}
SLOW_START = re.compile(r"^xmp: the start took .*\n", re.MULTILINE)


def plain(text: str) -> list[str]:
    """Sorted lines, without what differs from run to run."""
    text = re.sub(r"^[A-Z]\w+: (?=rank)", "", text, flags=re.MULTILINE)  # the error's class
    text = SLOW_START.sub("", text).replace(f"on {socket.gethostname()})", "on vm)")
    text = re.sub(r"pid \d+", "pid", text)
    return sorted(filter(None, re.sub(r"/\S+/ipykernel_\S+\.py", "cell", text).splitlines()))


def got(messages: list[dict[str, Any]], cell: int) -> str:
    """What a cell printed and raised, and its value, which the next one has printed."""
    error = text_of(messages, cell, "error").partition("\nThe variables of rank")[0]
    value = "" if error else text_of(messages, cell + 1)
    return f"{text_of(messages, cell)}{error}\n{value}"


@pytest.mark.parametrize("page", [page for page in CELLS if CELLS[page]])
def test_each_cell_gets_what_its_page_shows(kernel: Kernel, page: str) -> None:
    def both(cell: Program) -> list[str]:
        return [cell.block.text, "print(repr(_))"]

    messages = kernel("import xmp", *(each for cell in CELLS[page] for each in both(cell)))
    for number, cell in enumerate(CELLS[page]):
        assert cell.shown, cell.block.where
        assert plain(got(messages, 2 * number + 1)) == plain(cell.shown), cell.block.where
