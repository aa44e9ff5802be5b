"""Signal handlers of the program that raise while xmp starts, waits, packs or loads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.in_script import is_alive
from tests.support.launching import SlowToPickle, launch, never_returns, who_by_reference
from tests.support.stage import Stage
from tests.support.waiting import until

pytestmark = pytest.mark.failing


def waits(rank: int) -> None:
    never_returns()


class Unusual(BaseException):
    """As pytest's own exceptions are."""


ERRORS = [TimeoutError("now"), OSError(5, "now"), ValueError("now"), EOFError("now"), Unusual()]


def raising(error: BaseException) -> Callable[[], None]:
    def handle() -> None:
        raise error

    return handle


def notes_its_end(rank: int, folder: Path) -> None:
    def end(*_: object) -> None:
        (folder / f"ended{rank}").touch()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    (folder / f"pid-{os.getpid()}").touch()  # at once, unlike a text
    never_returns()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_that_leaves_spawn_ends_the_replicas_in_order(
    error: BaseException, method: str, at: Any, tmp_path: Path
) -> None:
    def over() -> None:
        if len([*tmp_path.glob("pid*")]) == 2:
            raise error
        at(0.05, over)

    at(0.1, over)
    with pytest.raises(type(error)) as caught:
        launch(method, notes_its_end, tmp_path)
    assert caught.value is error
    assert error.__cause__ is None
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob("pid*")]
    assert not any(map(is_alive, pids))
    assert len([*tmp_path.glob("ended*")]) == 2, "SIGTERM came first"


def test_an_exception_of_a_handler_is_no_failure_that_a_restart_could_mend(at: Any) -> None:
    error = TimeoutError("now")
    at(0.5, raising(error))
    with pytest.raises(TimeoutError) as caught:
        launch("forkserver", waits, max_restarts=3)
    assert caught.value is error


def returns_when_there(rank: int, path: Path) -> int:
    until(path.exists, 30)
    return rank


def test_a_launch_runs_on_after_an_exception_that_left_join(
    method: str, at: Any, tmp_path: Path
) -> None:
    path, error = tmp_path / "go", TimeoutError("now")
    context = launch(method, returns_when_there, path, join=False)
    at(0.1, raising(error))
    with pytest.raises(TimeoutError) as caught:
        context.join()
    assert caught.value is error
    path.touch()
    assert list(context.results()) == [0, 1]


def test_system_exit_ends_a_launch_whose_join_it_leaves(at: Any) -> None:
    context = launch("forkserver", waits, join=False)
    at(0.1, raising(SystemExit(3)))
    with pytest.raises(SystemExit):
        context.join()
    assert not any(is_alive(pid) for pid in context.pids())


def test_another_interrupt_ends_the_replicas_at_once(at: Any, tmp_path: Path) -> None:
    calls = []

    def over() -> None:
        at(0.2, over)
        if len([*tmp_path.glob("there*")]) == 2:
            calls.append(len(calls))
            raise KeyboardInterrupt(calls[-1])

    at(0.1, over)
    with pytest.raises(KeyboardInterrupt):
        launch("forkserver", ignores, tmp_path, grace=600.0)
    at(30, over)
    assert len(calls) == 2


def test_an_alarm_that_repeats_does_not_shorten_the_grace(
    at: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is raised meanwhile is printed, once for each class."""
    calls = []

    def over() -> None:
        at(0.05, over)
        if len([*tmp_path.glob("there*")]) == 2:
            calls.append(len(calls))
            (tmp_path / f"raised{len(calls)}").touch()
            raise (TimeoutError if len(calls) == 1 else OSError)(calls[-1])

    at(0.1, over)
    with pytest.raises(TimeoutError, match="0"):
        launch("forkserver", saves, tmp_path, grace=30)
    at(30, over)
    assert len(calls) > 3
    printed = capfd.readouterr().err
    assert printed.count("was raised while xmp ended the launch after TimeoutError") == 1
    assert "OSError(1) was raised" in printed
    assert len([*tmp_path.glob("saved*")]) == 2


def saves(rank: int, folder: Path) -> None:
    def save(*_: object) -> None:
        until((folder / "raised4").exists, 20)  # within the grace
        (folder / f"saved{rank}").touch()
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    (folder / f"there{rank}").touch()
    never_returns()


def ignores(rank: int, folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    (folder / f"there{rank}").touch()
    never_returns()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_while_arguments_are_pickled_is_the_programs_own(
    error: BaseException, at: Any
) -> None:
    at(0.05, raising(error))
    with pytest.raises(type(error)) as caught:
        launch("forkserver", who_by_reference, SlowToPickle(lambda: False))
    assert caught.value is error


def test_an_exception_while_a_listener_runs_is_the_programs_own(at: Any) -> None:
    error, inside = ValueError("now"), []

    def over() -> None:
        if inside:
            raise error
        at(0.05, over)

    def listen(event: xmp.Event) -> None:
        if event.name == "running" and not inside:  # the other's is delivered as well
            inside.append(event)
            until(lambda: False, 20)

    at(0.05, over)
    with pytest.raises(ValueError, match="now") as caught:
        launch("forkserver", waits, events=listen)
    assert caught.value is error


def loads_slowly(path: str) -> str:
    Path(path).touch()
    until(lambda: False, 20)
    return path


class LoadsSlowly:
    """A result that takes its time where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return loads_slowly, (str(self.path),)


def returns_it(rank: int, path: Path) -> LoadsSlowly | None:
    return LoadsSlowly(path) if rank == 0 else None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_while_a_result_is_loaded_is_the_programs_own(
    error: BaseException, at: Any, tmp_path: Path
) -> None:
    path = tmp_path / "loads"

    def over() -> None:
        if path.exists():
            raise error
        at(0.05, over)

    at(0.05, over)
    context = launch("forkserver", returns_it, path, join=False)
    with pytest.raises(type(error)) as caught:
        context.join()
    assert caught.value is error
    with pytest.raises(xmp.XmpError, match="rank 0's result is lost"):
        context.results()


SCRIPT = """
import os, signal
import in_script, xmp

if __name__ != "__main__":
    open("imports", "w").close()
    in_script.never_returns()  # a slow import

class Own(Exception):
    pass

def over(*_):
    if os.path.exists("imports"):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise ended

if __name__ == "__main__":
    signal.signal(signal.SIGALRM, over)
    for kind in (TimeoutError, OSError, ValueError, EOFError, Own):
        ended = kind("now")
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        try:
            xmp.spawn(abs, nprocs=2, runtime="cpu")
        except BaseException as error:
            in_script.say(**{kind.__name__: error is ended})
        os.unlink("imports")
"""


def test_an_exception_while_the_script_is_imported_is_the_programs_own(stage: Stage) -> None:
    outcome = stage.run(SCRIPT)
    names = ("TimeoutError", "OSError", "ValueError", "EOFError", "Own")
    assert outcome.said == dict.fromkeys(names, True), outcome
    assert outcome.err == ""


def test_handlers_are_the_programs_own_again_and_as_they_were(at: Any) -> None:
    signal.siginterrupt(signal.SIGUSR1, False)
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGQUIT, signal.SIGUSR1]
    before = [signal.getsignal(number) for number in numbers]
    launch("forkserver", who_by_reference)
    assert [signal.getsignal(number) for number in numbers] == before
