"""Launches over hosts from the cells of a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import BEGIN, text_of

pytestmark = pytest.mark.hosts

CELL = """
class Mine(Exception):
    pass

factor = 3

def fn(rank):
    print('hello', rank)
    if rank == factor:
        raise Mine('of a cell')
    return rank * factor

def over_hosts(**options):
    options = {"runtime": "cpu", "progress": False, **options}
    return xmp.launch(fn, hosts=2, engine="local", **options)
"""


def test_functions_and_output_of_cells(kernel: Callable[..., list[dict[str, Any]]]) -> None:
    cells = (
        BEGIN,
        CELL,
        "print(list(over_hosts(nprocs=1)))",
        """
try:
    over_hosts(nprocs=2)
except xmp.ReplicaRaised as error:
    print(type(error.__cause__) is Mine, error.rank, error.host)""",
    )
    messages = kernel(*cells)
    first, second = (text_of(messages, cell).splitlines() for cell in (2, 3))
    assert sorted(first[:-1]) == ["[127.0.0.2:0] hello 0", "[127.0.0.3:1] hello 1"], messages
    assert first[-1] == "[0, 3]"
    assert second[-1] == "True 3 127.0.0.3"
    assert set(second[:-1]) <= {
        f"[127.0.0.{2 + rank // 2}:{rank}] hello {rank}" for rank in range(4)
    }
