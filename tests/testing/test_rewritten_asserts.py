"""An assert of a test module shows its values in a replica, however the module comes there."""

from __future__ import annotations

import re

import pytest

from tests.support.launching import METHODS, failure
from tests.support.stage import Stage

pytestmark = pytest.mark.failing


def compares(rank: int) -> None:
    values = {"rank": rank}
    assert values == {"rank": -1}, "with words"


@pytest.mark.parametrize("method", METHODS)
def test_the_message_has_the_values(method: str) -> None:
    error = failure(method, compares)
    assert isinstance(error.__cause__, AssertionError)
    said = str(error.__cause__)
    assert re.match(r"with words\nassert \{'rank': \d\} == \{'rank': -1\}", said), said
    assert 'assert values == {"rank": -1}, "with words"' in str(error)


SUITE = """
import pytest, xmp
pytest.register_assert_rewrite("checked", "broken")
import checked

def by_helper(rank):
    checked.check(rank + 40)

def test_helper():
    with pytest.raises(xmp.ReplicaRaised, match="assert 4[01] == 43"):
        xmp.spawn(by_helper, nprocs=2, runtime="cpu")

def test_by_value():
    limit = 43
    def closure(rank):
        answer = 42
        assert answer == limit
    with pytest.raises(xmp.ReplicaRaised, match="assert 42 == 43"):
        xmp.spawn(closure, nprocs=2, runtime="cpu")

def imports_what_is_broken(rank):
    import broken

def test_a_module_that_does_not_compile():
    with pytest.raises(SyntaxError):
        import broken
    with pytest.raises(xmp.ReplicaRaised, match="raised SyntaxError"):
        xmp.spawn(imports_what_is_broken, nprocs=2, runtime="cpu")
"""
CHECKED = """
def check(answer):
    assert answer == 43
"""


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_modules_that_are_registered_and_functions_by_value(stage: Stage, mode: str) -> None:
    stage.write(SUITE, "test_suite.py")
    stage.write(CHECKED, "checked.py")
    stage.write("def broken(:\n", "broken.py")
    options = ("-q", "-p", "no:cacheprovider", f"--import-mode={mode}", "test_suite.py")
    env = {"PYTHONPATH": str(stage.folder)}
    report = stage.python("-m", "pytest", *options, env=env, timeout=100).out
    assert "3 passed" in report, report
