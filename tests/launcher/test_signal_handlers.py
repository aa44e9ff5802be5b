"""Signal handlers of the program that raise, or use xmp themselves, while xmp starts or waits."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.in_script import is_alive
from tests.support.launching import launch, never_returns, who_by_reference
from tests.support.stage import Stage
from tests.support.timer import Timer
from tests.support.waiting import until

pytestmark = pytest.mark.failing

SOON = 3.0  # seconds, where a launcher that waits for an answer in vain takes 5


def waits(rank: int) -> None:
    never_returns()


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


# --- handlers that use xmp ------------------------------------------------------------------------


def test_a_handler_ends_the_launch_that_the_thread_joins(
    method: str, at: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    context = launch(method, waits, join=False)
    began = time.monotonic()
    at(0.2, context.terminate)
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    assert time.monotonic() - began < SOON
    assert "does not answer" not in capfd.readouterr().err


def test_a_handler_gets_the_stacks_of_the_launch_that_the_thread_joins(at: Any) -> None:
    context, took = launch("forkserver", waits, join=False), []

    def take() -> None:
        began = time.monotonic()
        took.append((context.stacks(), time.monotonic() - began))

    at(0.2, take)
    assert not context.join(1.0)
    context.terminate()
    stacks, seconds = took[0]
    assert sorted(stacks) == [0, 1]
    assert all("in waits" in text for text in stacks.values())
    assert seconds < SOON


def test_a_handler_launches_while_a_launch_waits_for_its_template(at: Any) -> None:
    xmp.shutdown()
    inner: list[Any] = []
    at(0.05, lambda: inner.append(list(launch("forkserver", who_by_reference))))
    assert [rank for rank, *_ in launch("forkserver", who_by_reference)] == [0, 1]
    assert [[rank for rank, *_ in each] for each in inner] == [[0, 1]]


def test_a_handler_launches_while_arguments_are_pickled(at: Any) -> None:
    inner: list[Any] = []
    at(0.05, lambda: inner.append(list(launch("forkserver", who_by_reference))))
    assert len(launch("forkserver", who_by_reference, Slow(lambda: bool(inner)))) == 2
    assert len(inner[0]) == 2


class Slow:
    """Takes its time when it is pickled."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self.over = over

    def __reduce__(self) -> tuple[Any, ...]:
        until(self.over, 20)
        return str, ("slow",)


def test_an_event_listener_asks_the_launch_that_it_hears_of() -> None:
    known: list[Any] = []
    seen = []

    def listen(event: xmp.Event) -> None:
        if event.name == "running" and known:
            seen.append(sorted(known[0].stacks()))
            known.pop().terminate()

    context = launch("forkserver", waits, join=False, events=listen)
    known.append(context)
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    assert len(seen) == 1


def stop_by_collection(context: Any) -> Iterator[None]:
    def collected(phase: str, _: object) -> None:
        gc.callbacks.remove(collected)
        context.terminate()

    gc.callbacks.append(collected)
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*thresholds)


def stop_by_finalizer(context: Any) -> Iterator[None]:
    class Node:
        pass

    one, two = Node(), Node()
    one.other, two.other = two, one  # type: ignore[attr-defined]
    weakref.finalize(one, context.terminate)
    thresholds = gc.get_threshold()
    del one, two
    gc.set_threshold(1)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("way", [stop_by_collection, stop_by_finalizer])
def test_the_collector_ends_the_launch_that_the_thread_joins(way: Any) -> None:
    context = launch("forkserver", waits, join=False)
    began, stop = time.monotonic(), way(context)
    next(stop)
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    next(stop, None)
    assert time.monotonic() - began < SOON


# --- handlers that raise --------------------------------------------------------------------------


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
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    never_returns()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_that_leaves_spawn_ends_the_replicas_in_order(
    error: BaseException, method: str, at: Any, tmp_path: Path
) -> None:
    def over() -> None:
        until(lambda: len([*tmp_path.glob("pid*")]) == 2, 20)
        raise error

    at(0.1, over)
    with pytest.raises(type(error)) as caught:
        launch(method, notes_its_end, tmp_path)
    assert caught.value is error
    assert error.__cause__ is None
    pids = [int(path.read_text()) for path in tmp_path.glob("pid*")]
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


def test_a_second_exception_ends_the_replicas_at_once(at: Any, tmp_path: Path) -> None:
    calls = []

    def over() -> None:
        until(lambda: len([*tmp_path.glob("deaf*")]) == 2, 20)
        at(0.2, over)
        calls.append(len(calls))
        raise TimeoutError(calls[-1])

    at(0.1, over)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        launch("forkserver", ignores, tmp_path, grace=30.0)
    at(30, over)
    assert len(calls) == 2
    assert time.monotonic() - began < 10


def ignores(rank: int, folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"deaf{rank}").touch()
    never_returns()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_while_arguments_are_pickled_is_the_programs_own(
    error: BaseException, at: Any
) -> None:
    at(0.05, raising(error))
    with pytest.raises(type(error)) as caught:
        launch("forkserver", who_by_reference, Slow(lambda: False))
    assert caught.value is error


def test_an_exception_while_a_listener_runs_is_the_programs_own(at: Any) -> None:
    error, inside = ValueError("now"), []

    def over() -> None:
        if inside:
            raise error
        at(0.05, over)

    def listen(event: xmp.Event) -> None:
        if event.name == "running":
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
import signal, sys, time
import in_script, xmp

if __name__ != "__main__":
    in_script.say(imports=True)
    time.sleep(30)  # a slow import

def fn(rank):
    return rank

class Own(Exception):
    pass

def over(*_):
    raise {error}("now")

if __name__ == "__main__":
    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    began = time.monotonic()
    try:
        xmp.spawn(fn, nprocs=2, runtime="cpu")
    except {error} as error:
        in_script.say(raised=str(error), took=time.monotonic() - began)
"""


@pytest.mark.parametrize("error", ["TimeoutError", "OSError", "ValueError", "EOFError", "Own"])
def test_an_exception_while_the_script_is_imported_is_the_programs_own(
    error: str, stage: Stage
) -> None:
    outcome = stage.run(SCRIPT.format(error=error), timeout=25)
    assert outcome.said["raised"] == "now", outcome
    assert outcome.said["took"] < 15
    assert outcome.err == ""


def test_handlers_are_the_programs_own_again_and_as_they_were(at: Any) -> None:
    signal.siginterrupt(signal.SIGUSR1, False)
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGQUIT, signal.SIGUSR1]
    before = [signal.getsignal(number) for number in numbers]
    launch("forkserver", who_by_reference)
    assert [signal.getsignal(number) for number in numbers] == before
