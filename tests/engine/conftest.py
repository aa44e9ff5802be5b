"""One behaviour, three start methods; and no test outlives its deadline."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _behaviour import METHODS, Done, Script, run_script

WITHOUT = os.environ.get("XMP_WITHOUT")  # the kernel features that this pass does without
DEADLINE = 45  # seconds for one test; a hang fails with the launcher's stacks


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "subreaper: needs a child subreaper to find orphans")
    config.addinivalue_line("markers", "first_pass: not repeated without kernel features")
    config.addinivalue_line("markers", "no_deadline: has one of its own")


@pytest.fixture(scope="session", autouse=True)
def arena(session_mark: None) -> None:
    """multiprocessing keeps the file of its shared values for good, once it has made one."""
    multiprocessing.get_context("spawn").Value("i", 0)


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    """The start method; every behaviour is the same for all of them."""
    value: str = request.param
    return value


@pytest.fixture(autouse=True)
def clean_environment(clean_environment: None) -> None:
    """The cleaned environment, with the switch that this pass was started with."""
    if WITHOUT is not None:
        os.environ["XMP_WITHOUT"] = WITHOUT


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[None]:
    """A signal rather than a thread: a forked replica must not find a thread in its launcher."""

    def over(*_: object) -> None:
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        pytest.fail(f"not done within {DEADLINE} s")

    # pytest's own watchdog is a native thread, and `fork` is refused where one is up.
    faulthandler.cancel_dump_traceback_later()
    before = signal.signal(signal.SIGALRM, over)
    if request.node.get_closest_marker("no_deadline") is None:
        signal.alarm(DEADLINE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user: with this variable Python and C write everything at once."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Write a program and run it as a user would: ``script(source, *argv)``."""

    def run(source: str, *arguments: str, name: str = "train.py", **options: object) -> Done:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return run_script([str(path), *arguments], **options)  # type: ignore[arg-type]

    return run
