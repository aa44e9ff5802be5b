"""Test modules that replicas can import travel by name; the message says what cannot be sent."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import launch
from tests.support.stage import Python

LOCK = threading.Lock()


def uses_lock(rank: int) -> int:
    with LOCK:
        return rank


def test_a_test_modules_own_lock() -> None:
    assert list(launch("forkserver", uses_lock)) == [0, 1]


class TestMethods:
    lock = LOCK

    def helper(self, rank: int) -> int:
        with self.lock:
            return rank + 10

    def test_self_helper(self) -> None:
        assert list(launch("forkserver", self.helper)) == [10, 11]


OUTSIDE = """
import threading
import pytest, xmp

LOCK = threading.Lock()

def uses_lock(rank):
    with LOCK:
        return rank

def adds(rank):
    return rank + 1

def test_sent():
    assert list(xmp.spawn(adds, nprocs=2, runtime="cpu")) == [1, 2]

def test_not_sent():
    with pytest.raises(TypeError, match="fn's global LOCK .lock. cannot be sent"):
        xmp.spawn(uses_lock, nprocs=2, runtime="cpu")
"""


def test_a_module_that_no_finder_knows_goes_by_value(python: Python, tmp_path: Path) -> None:
    """With --import-mode=importlib the folder of a test is not in sys.path."""
    (tmp_path / "test_outside.py").write_text(OUTSIDE)
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", "/dev/null")
    done = python("-m", "pytest", *options, str(tmp_path / "test_outside.py"), timeout=60)
    assert done.code == 0, done.out + done.err


def test_a_captured_variable_is_named() -> None:
    guard = threading.Lock()
    numbers = (number for number in ())

    def with_lock(rank: int) -> None:
        guard.acquire()

    def with_default(rank: int, out: Any = numbers) -> None:
        next(out)

    def helper() -> None:
        guard.acquire()

    def indirect(rank: int) -> None:
        helper()

    for fn, words in (
        (with_lock, "fn's variable guard (lock) cannot be sent"),
        (with_default, "fn's default of out (generator) cannot be sent"),
        (indirect, "fn's variable helper's variable guard (lock) cannot be sent"),
    ):
        with pytest.raises(TypeError, match=re.escape(words)):
            launch("forkserver", fn)


def calls(rank: int, fn: Any) -> None:
    fn(rank)


def test_a_captured_variable_of_an_argument_is_named() -> None:
    guard = threading.Lock()
    with pytest.raises(TypeError, match=r"args\[0\]'s variable guard .lock. cannot be sent"):
        launch("forkserver", calls, lambda rank: guard.acquire())
