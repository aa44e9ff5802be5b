"""``breakpoint()`` in a kernel, where debugpy's hook does nothing while no client is attached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import BEGIN, text_of

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

Kernel = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("call", ["breakpoint()", "xmp.breakpoint()"])
def test_one_replica_stops_in_pdb_which_reads_from_the_cell(
    call: str, shared_kernel: Kernel
) -> None:
    cells = (
        BEGIN,
        f"""
before = sys.breakpointhook
def fn(rank):
    secret = rank + 22
    {call}
    return secret
print([*start(fn, nprocs=1)], sys.breakpointhook is before)""",
    )
    messages = shared_kernel(*cells, type_in=("p 'it is', secret", "secret = 5", "c"))
    said = text_of(messages, 1)
    assert "('it is', 22)" in said, messages
    assert "_inside/breakpoint.py" not in said  # it stops in the user's frame
    assert said.splitlines()[-1] == "[5] True"


def test_outside_a_launch_too(shared_kernel: Kernel) -> None:
    cell = """
def plain():
    secret = 22
    xmp.breakpoint()
plain()"""
    assert "('it is', 22)" in text_of(
        shared_kernel(BEGIN, cell, type_in=("p 'it is', secret", "c")), 1
    )


@pytest.mark.parametrize("call", ["breakpoint()", "xmp.breakpoint()"])
def test_a_replica_of_a_notebook_says_that_there_is_no_terminal(
    call: str, shared_kernel: Kernel
) -> None:
    cell = f"""
xmp.preload('debugpy')  # as the template does when it is idle
def fn(rank):
    {call}
start(fn)"""
    messages = shared_kernel(BEGIN, cell)
    (error,) = [m["text"] for m in messages if m["name"] == "error"]
    assert "RuntimeError" in error
    assert "nprocs=1" in error
    assert "is at a breakpoint" not in "".join(m.get("text", "") for m in messages)


def test_a_debugger_that_the_program_names_is_called(shared_kernel: Kernel) -> None:
    cells = (
        f"{BEGIN}\ndef fn(rank): breakpoint('mine')",
        "os.environ['PYTHONBREAKPOINT'] = '0'\nprint([*start(fn, nprocs=1)])",
        "os.environ['PYTHONBREAKPOINT'] = 'builtins.print'\nstart(fn, nprocs=1)",
        "del os.environ['PYTHONBREAKPOINT']",
    )
    messages = shared_kernel(*cells)
    assert text_of(messages, 1) == "[None]\n"
    assert text_of(messages, 2) == "mine\n"
