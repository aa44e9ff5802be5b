"""Interpreters that warn of everything, or record every allocation: nothing of xmp's shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import METHODS
from tests.support.stage import SUPPORT, Python, Script

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


@pytest.mark.parametrize("method", METHODS)
def test_replicas_record_allocations(script: Script, method: str) -> None:
    """To import torch takes many times longer with it, and none of that is the program's."""
    ended = script(PROGRAM, method, env={"PYTHONTRACEMALLOC": "3"})
    assert ended.json() == [[3, 3], False]


def test_a_template_records_no_allocations(script: Script) -> None:
    ended = script(TEMPLATE, env={"PYTHONTRACEMALLOC": "3", "PYTHONPATH": str(SUPPORT)})
    assert ended.json() == [[], "3"]


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


TEMPLATE = """
import json, os, sys, xmp

def fn(rank):
    return os.environ["PYTHONTRACEMALLOC"]

if __name__ == "__main__":
    import in_script
    (inherited, _) = xmp.spawn(fn, nprocs=2, runtime="cpu")
    found = [open(f"/proc/{pid}/environ").read() for pid in in_script.templates()]
    assert found
    print(json.dumps([[text for text in found if "TRACEMALLOC" in text], inherited]))
"""
