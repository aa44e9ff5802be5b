"""What every test has, and how it launches: start methods, scripts, stages, terminals."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import METHODS
from tests.support.leaks import MARK, STAGES
from tests.support.stage import Outcome, Python, Script, Stage
from tests.support.terminal import Terminal
from tests.support.timer import Timer
from xmp._plan.runtimes._base import matches
from xmp._plan.runtimes._known_variables import REPORTED

WITHOUT = os.environ.get("XMP_WITHOUT")  # the kernel features that this run does without
TIME_LIMIT = 90  # seconds for one test; a hang, not a slow machine, is to exceed it
LONG_LIMIT = 180  # for one with frameworks, or whose scripts have their own deadlines
SLOW_LIMIT = 540  # for one marked slow
LONG_FOLDERS = {
    "compat", "frameworks", "xla", "torch_tpu", "libtpu", "paddle", "ray", "faults", "hangs",
    "hosts", "slurm", "wheel",
}  # fmt: skip

# What launchers and devices are found by: all that a report of a host shows, and all of the
# launchers' own.
READ = (*REPORTED, "SLURM_*", "OMPI_*", "PMI_*", "PMIX_*", "KUBERNETES_*")


@pytest.fixture(autouse=True)
def clean_environment(session_mark: None) -> Iterator[None]:
    """Take away what launchers and runtimes read; put the environment back afterwards."""
    saved = dict(os.environ)
    for name in saved:
        if name != MARK and matches(name, READ):
            del os.environ[name]
    if WITHOUT is not None:
        os.environ["XMP_WITHOUT"] = WITHOUT
    yield
    for name in set(os.environ) - set(saved):
        del os.environ[name]
    os.environ.update(saved)


def limit_of(request: pytest.FixtureRequest) -> int:
    """The seconds that a test may take."""
    if request.node.get_closest_marker("slow"):
        return SLOW_LIMIT
    long = request.path.parent.name in LONG_FOLDERS or STAGES & set(request.fixturenames)
    return LONG_LIMIT if long else TIME_LIMIT


@pytest.fixture(autouse=True)
def time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that hangs, with all stacks.

    By a signal: pytest's faulthandler_timeout is a native thread, and ``fork`` is refused where
    one is up.
    """
    faulthandler.cancel_dump_traceback_later()
    limit = limit_of(request)

    def over(*_: object) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        pytest.fail(f"not done within {limit} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(limit)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat the contract of a room with each start method; other tests have the default one."""
    test = metafunc.definition
    chosen = any("method" in str(mark.args[0]) for mark in test.iter_markers("parametrize"))
    if test.get_closest_marker("each_method") and "method" in metafunc.fixturenames and not chosen:
        metafunc.parametrize("method", METHODS, indirect=True)


@pytest.fixture
def method(request: pytest.FixtureRequest) -> str:
    """The start method."""
    value: str = getattr(request, "param", METHODS[0])
    return value


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run an interpreter as a user would: ``python(*arguments)``.

    What is left of it stays for ``nothing_left`` to find.
    """
    stage = Stage(tmp_path, path=())

    def run(*arguments: str, **options: object) -> Outcome:
        options.setdefault("cwd", None)
        return stage.python(*arguments, **options)  # type: ignore[arg-type]

    return run


@pytest.fixture
def script(tmp_path: Path, python: Python) -> Script:
    """Write a program and run it as a user would: ``script(source, *argv)``."""

    def run(source: str, *arguments: str, name: str = "train.py", **options: object) -> Outcome:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return python(str(path), *arguments, **options)

    return run


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage of this test's own; whatever is left afterwards is killed."""
    stage = Stage(tmp_path)
    yield stage
    stage.end()


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One stage for a module whose tests look at one run from several sides."""
    stage = Stage(tmp_path_factory.mktemp("shared"))
    yield stage
    stage.end()


@pytest.fixture
def terminal(stage: Stage) -> Iterator[Terminal]:
    """A terminal for programs of the stage."""
    terminal = Terminal(stage)
    yield terminal
    terminal.close()


@pytest.fixture
def at() -> Iterator[Callable[[float, Callable[[], Any]], None]]:
    """``at(seconds, call)``: a signal's handler calls it after that time."""
    timer, before = Timer(signal.SIGUSR1), signal.getsignal(signal.SIGUSR1)

    def set_to(seconds: float, call: Callable[[], Any]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: call())
        timer.set(seconds)

    yield set_to
    timer.set(0)
    signal.signal(signal.SIGUSR1, before)
