"""A user's test suite under a real pytest: what of a launch its report shows, and what it skips."""

from __future__ import annotations

import re

import pytest

from tests.support.stage import PACKAGE, Stage

pytestmark = pytest.mark.peers

BEGIN = """
import pathlib, unittest

import pytest
import xmp
from waiting import until

def launched(fn, how, **options):
    options.setdefault("nprocs", 2)
    if how == "join":
        xmp.spawn(fn, runtime="cpu", join=False, **options).join()
    elif how == "results":
        xmp.spawn(fn, runtime="cpu", join=False, **options).results()
    elif how == "restart":
        xmp.spawn(fn, runtime="cpu", max_restarts=1, **options)
    elif how == "launcher":
        def without_rank():
            fn(xmp.rank())
        xmp.launcher(without_rank, runtime="cpu", **options)()
    else:
        xmp.spawn(fn, runtime="cpu", **options)
"""

SKIPS = (
    BEGIN
    + """
def by_all(rank):
    pytest.skip("by all")

def by_one(rank):
    if rank == 1:
        pytest.skip("by one")

def before_a_barrier(rank):
    if rank == 1:
        pytest.skip("before a barrier")
    xmp.init_process_group()
    xmp.barrier()

def imports(rank):
    pytest.importorskip("no_such_module")

def expected(rank):
    pytest.xfail("a known bug")

def of_unittest(rank):
    raise unittest.SkipTest("of unittest")

@pytest.mark.parametrize("how", ["join", "results", "restart", "launcher", "call"])
def test_by_all(how):
    launched(by_all, how)

@pytest.mark.parametrize("fn", [by_one, before_a_barrier, imports, expected, of_unittest])
def test_by(fn):
    launched(fn, "call")

class TestOfUnittest(unittest.TestCase):
    def test_method(self):
        launched(of_unittest, "call")

@pytest.fixture(scope="class")
def answers():
    return list(xmp.spawn(abs, nprocs=2, runtime="cpu"))

def square(rank):
    '''
    >>> xmp.spawn(square, nprocs=2, runtime="cpu")
    Results([0, 1])
    '''
    return rank**2

class TestOfClass:
    def test_a_fixture_of_the_class(self, answers):
        assert answers == [0, 1]
"""
)
REASONS = {
    "by all": 5,
    "by one": 1,
    "before a barrier": 1,
    "could not import 'no_such_module': No module named 'no_such_module'": 1,
    "of unittest": 2,
}


def under_pytest(stage: Stage, suite: str, *options: str) -> str:
    """The report of a run of this suite."""
    stage.write(suite, "test_suite.py")
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_suite.py")
    return stage.python(*command, timeout=100).out


def test_a_skip_in_a_replica_skips_the_test(stage: Stage) -> None:
    report = under_pytest(stage, SKIPS, "-rA", "--doctest-modules")
    skipped = re.findall(r"^SKIPPED \[1\] (.*):\d+: (.*)$", report, re.MULTILINE)
    assert {reason: [each for _, each in skipped].count(reason) for reason in REASONS} == REASONS
    # pytest says itself where a SkipTest of a function comes from: its own _pytest/unittest.py.
    own = [where for where, _ in skipped if where != "test_suite.py"]
    assert [where.rpartition("/")[2] for where in own] == ["unittest.py"], report
    assert "XFAIL test_suite.py::test_by[expected] - a known bug" in report
    assert "2 passed, 10 skipped, 1 xfailed" in report


FAILURES = (
    BEGIN
    + """
def fails(rank):
    answer = 42
    assert answer == 43, "the answer of the replicas"

def skips_where_another_fails(rank):
    skips = pathlib.Path(__file__).with_name("skips")
    if rank == 1:
        skips.touch()
        pytest.skip("by rank 1")
    until(skips.exists)
    raise ValueError("a failure wins")

def test_spawn():
    xmp.spawn(fails, nprocs=2, runtime="cpu")

def test_join():
    context = xmp.spawn(fails, nprocs=2, runtime="cpu", join=False)
    context.join()

def test_results():
    context = xmp.spawn(fails, nprocs=2, runtime="cpu", join=False)
    context.results()

def test_start_processes():
    xmp.start_processes(fails, nprocs=2)

def test_launch():
    xmp.launch(fails, nprocs=2, runtime="cpu")

def test_launcher():
    xmp.launcher(lambda: fails(0), nprocs=2, runtime="cpu")()

def test_here():
    xmp.spawn(fails, nprocs=1, runtime="cpu")

def test_refused():
    xmp.spawn(fails, nprocs=2, runtime="cdua")

def test_both():
    xmp.spawn(skips_where_another_fails, nprocs=2, runtime="cpu")
"""
)


STYLES = ("auto", "long", "short", "line", "native")
RUNS = """
import pytest, sys
for style in sys.argv[1:]:
    pytest.main(["-q", "-p", "no:cacheprovider", f"--tb={style}", "test_suite.py"])
    print("=" * 20, "next", flush=True)
"""


@pytest.fixture(scope="module")
def reports(shared_stage: Stage) -> dict[str, str]:
    """The same failures in each style: one program runs pytest for all of them."""
    shared_stage.write(FAILURES, "test_suite.py")
    said = shared_stage.python("-c", RUNS, *STYLES, timeout=100).out
    return dict(zip(STYLES, said.split("=" * 20 + " next"), strict=False))


@pytest.mark.failing
@pytest.mark.parametrize("style", STYLES)
def test_a_report_has_no_line_of_xmp(reports: dict[str, str], style: str) -> None:
    report = reports[style]
    assert "9 failed" in report, report
    head = report.partition("short test summary")[0]
    # Python's own tracebacks know nothing of hidden frames, and have one frame of xmp.
    most = 9 if style == "native" else 0
    assert len(re.findall(rf"{PACKAGE}/\w+.*\.py", head)) <= most, head
    assert '"""' not in head
    sections = re.split(r"^_+ (test_\w+) _+$", head, flags=re.MULTILINE)
    if style == "auto":
        assert re.findall(r"^test_suite\.py:\d+: (\w+)$", head, re.MULTILINE) == [
            *("ReplicaRaised",) * 6,
            *("AssertionError", "PlanError", "ReplicaRaised"),
        ]
        assert "raised ValueError: a failure wins" in sections[-1]
        assert "raised Skipped: by rank 1" in sections[-1]


DEBUGGED = {
    "test_spawn": "xmp.spawn(fails, nprocs=2",
    "test_join": "context.join()",
    "test_results": "context.results()",
    "test_launcher": "xmp.launcher(lambda",
    "test_here": 'assert answer == 43, "the answer',
}


@pytest.mark.failing
def test_the_debugger_of_pytest_stops_in_the_line_of_the_user(stage: Stage) -> None:
    stage.write(FAILURES, "test_suite.py")
    chosen = ("-k", " or ".join(DEBUGGED), "--pdb", "test_suite.py")
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen)
    said = stage.python(*command, stdin="continue\n" * len(DEBUGGED), timeout=100).out
    for name, line in DEBUGGED.items():
        stops = rf"> \S+test_suite\.py\(\d+\)\w+\(\)\n-> {re.escape(line)}"
        assert re.search(stops, said), f"{name}: {said}"
