"""Interrupts of replicas that have returned: what is left to do is done, and nothing is printed."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

import xmp
from tests.support.launching import launch

pytestmark = pytest.mark.failing


def note(folder: str, text: str) -> None:
    with open(f"{folder}/notes", "a") as notes:
        notes.write(f"{text}\n")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(method: str, fn: object, folder: Path, capfd: pytest.CaptureFixture) -> list[str]:
    """What the one replica noted, of whose interrupt the launch's error tells, and nothing else."""
    with pytest.raises(xmp.ReplicaDied, match="was interrupted"):
        launch(method, fn, str(folder), nprocs=1, join=False).results()
    assert capfd.readouterr().err == ""
    return (folder / "notes").read_text().splitlines()


class Records(logging.Handler):
    """Keeps its records until it is flushed, as a MemoryHandler does."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def emit(self, record: logging.LogRecord) -> None: ...

    def flush(self) -> None:
        interrupt()
        note(self.folder, "flushed")


def logs(rank: int, folder: str) -> None:
    logging.getLogger("of the replica").addHandler(Records(folder))


@pytest.mark.each_method
def test_a_flush_of_logging_is_not_broken_off(
    method: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert interrupted(method, logs, tmp_path, capfd) == ["flushed"]


def registers(rank: int, folder: str) -> None:
    atexit.register(note, folder, "after it")
    atexit.register(interrupt)
    atexit.register(note, folder, "before it")


@pytest.mark.each_method
def test_other_exit_handlers_run_after_one_that_was_interrupted(
    method: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert interrupted(method, registers, tmp_path, capfd) == ["before it", "after it"]


def has_a_child(rank: int, folder: str) -> None:
    atexit.register(note, folder, "exit handler")
    started, go = multiprocessing.get_context("fork").Pipe(False)

    def child() -> None:
        started.recv()
        os.kill(os.getppid(), signal.SIGINT)
        started.recv()

    multiprocessing.get_context("fork").Process(target=child).start()
    atexit.register(go.send, None)
    multiprocessing.util.Finalize(None, go.send, args=(None,), exitpriority=10)


def test_exit_handlers_run_where_the_wait_for_children_was_interrupted(
    method: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert interrupted(method, has_a_child, tmp_path, capfd) == ["exit handler"]


def raises_by_alarm(rank: int) -> int:
    def alarm(number: int, frame: object) -> None:
        raise TimeoutError("by the program's handler")

    signal.signal(signal.SIGALRM, alarm)
    atexit.register(os.kill, os.getpid(), signal.SIGALRM)
    return rank


def test_what_a_handler_of_the_program_raises_there_is_printed_as_by_python(
    method: str, capfd: pytest.CaptureFixture
) -> None:
    context = launch(method, raises_by_alarm, nprocs=1, join=False)
    assert list(context.results()) == [0]
    if method != "fork":  # which inherits pytest's collector of such errors
        assert "TimeoutError: by the program's handler" in capfd.readouterr().err
