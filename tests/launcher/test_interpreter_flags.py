"""Interpreters that warn of everything, or record every allocation: nothing of xmp's shows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import METHODS
from tests.support.stage import Python, Script, Stage

PROGRAM = """
import json, sys, tracemalloc, xmp

def fn(rank):
    kept = [bytes(1000) for _ in range(1000)]
    traced = tracemalloc.get_traced_memory()[0] > 10**6
    return tracemalloc.get_traceback_limit() if traced else 0

if __name__ == "__main__":
    options = {"nprocs": 2, "runtime": "cpu", "start_method": sys.argv[1]}
    found = list(xmp.spawn(fn, **options))
    context = xmp.spawn(fn, join=False, prefix=True, events=print, **options)
    context.join()
    print(json.dumps([found, "torch" in sys.modules]))
"""
TRACED = """
    import os
    import in_script
    in_script.say(found=found, torch="torch" in sys.modules)
    if sys.argv[1] == "forkserver":
        inherited, _ = xmp.spawn(lambda rank: os.environ["PYTHONTRACEMALLOC"], **options)
        texts = [open(f"/proc/{pid}/environ").read() for pid in in_script.templates()]
        assert texts
        in_script.say(recording=[t for t in texts if "TRACEMALLOC" in t], inherited=inherited)
"""
FLAGS = [("-X", "dev"), ("-W", "error"), ("-X", "dev", "-W", "error"), ("-bb", "-W", "error")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_no_warning_is_of_xmp(
    tmp_path: Path, python: Python, flags: tuple[str, ...], method: str
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    ended = python(*flags, str(program), method)
    assert (ended.code, ended.err) == (0, ""), ended.err


@pytest.fixture(scope="module")
def traced(shared_stage: Stage) -> Callable[[str], dict[str, Any]]:
    """What the program says that records its allocations, by start method; one run for each.

    Its own imports take 4 s of processor time: they are recorded, too.
    """

    @functools.cache
    def run(method: str) -> dict[str, Any]:
        path = shared_stage.write(PROGRAM + TRACED)
        done = shared_stage.python(str(path), method, env={"PYTHONTRACEMALLOC": "3"}, timeout=90)
        assert done.code == 0, done.err
        return done.said

    return run


@pytest.mark.parametrize("method", METHODS)
def test_replicas_record_allocations(traced: Callable[[str], dict[str, Any]], method: str) -> None:
    """To import torch takes many times longer with it, and none of that is the program's."""
    said = traced(method)
    assert (said["found"], said["torch"]) == ([3, 3], False)


def test_a_template_records_no_allocations(traced: Callable[[str], dict[str, Any]]) -> None:
    said = traced("forkserver")
    assert (said["recording"], said["inherited"]) == ([], "3")


ASKED = """
import sys, tracemalloc, xmp

def fn(rank):
    return tracemalloc.get_traceback_limit() if tracemalloc.is_tracing() else 0

if __name__ == "__main__":
    options = {"nprocs": 2, "runtime": "cpu", "start_method": sys.argv[1]}
    print(list(xmp.spawn(fn, env={"PYTHONTRACEMALLOC": "3"}, **options)))
    print(list(xmp.spawn(fn, **options)))
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_env_may_ask_for_that(script: Script, method: str) -> None:
    assert script(ASKED, method).out == "[3, 3]\n[0, 0]\n"
