"""``start_method="fork"`` in a kernel, whose own threads make every fork unsafe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.notebook_kernel import BEGIN, text_of

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

Kernel = Callable[..., list[dict[str, Any]]]


def test_the_default_method_runs_and_one_line_says_so(kernel: Kernel) -> None:
    snippet = """
FLAGS = {'lr': 0.1}
def _mp_fn(rank, flags):
    print(rank, flags, FLAGS)
    return os.getppid() == {launcher}
print([*start(_mp_fn, args=(FLAGS,), start_method='fork')])
"""
    cells = (BEGIN, snippet.replace("{launcher}", "0"), snippet.replace("{launcher}", "0"))
    messages = kernel(*cells)
    for cell in (1, 2):
        said = text_of(messages, cell).splitlines()
        assert said[-1] == "[False, False]", messages
        assert sorted(said[:-1]) == [f"{rank} {{'lr': 0.1}} {{'lr': 0.1}}" for rank in (0, 1)]
    lines = [m["text"] for m in messages if m["name"] == "stderr"]
    assert len(lines) == 1, messages  # in the first of the cells alone
    assert 'start_method="fork" is not safe in a notebook\'s kernel (' in lines[0]
    assert '; replicas are started with "forkserver"' in lines[0]


def test_start_processes_does_so_too(shared_kernel: Kernel) -> None:
    cell = """
print(xmp.start_processes(lambda i: print('hello', i), nprocs=2, start_method='fork'))
"""
    said = sorted(text_of(shared_kernel(BEGIN, cell), 1).splitlines())
    assert said == ["None", "hello 0", "hello 1"]


def test_what_needs_a_real_fork_is_refused_by_name(shared_kernel: Kernel) -> None:
    cell = """
import multiprocessing
lock = multiprocessing.get_context('fork').Lock()
start(lambda rank, lock: None, args=(lock,), start_method='fork')
"""
    (error,) = [m["text"] for m in shared_kernel(BEGIN, cell) if m["name"] == "error"]
    assert "args[0] (Lock) cannot be sent" in error
    assert "only forked children can use it" in error
    assert 'multiprocessing.get_context("spawn")' in error
