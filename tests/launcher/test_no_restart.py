"""What ends a launch whatever restarts are left: the user, a time limit, a wrong argument."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import xmp
from tests.support.launching import METHODS, always_fails, failure, launch, never_returns
from tests.support.stage import Script
from tests.support.waiting import until
from xmp._processes.messages.launch import Interrupt, Stop
from xmp._rules import restarts

pytestmark = pytest.mark.failing


def test_the_whole_call_has_one_timeout(method: str) -> None:
    def fn(rank: int) -> None:
        if xmp.restart_count() == 0:
            raise ValueError("once")
        never_returns()

    for limit in (2, 4, 8, 16):  # where the machine is busy, the second attempt begins later
        error = failure(method, fn, max_restarts=5, timeout=limit, grace=1)
        if error.history:
            break
    assert isinstance(error, xmp.ReplicaTimeout)
    assert str(error).startswith(f"timeout={limit}: not done {limit} s after the call")
    assert len(error.history) == 1


def counts(rank: int, path: str, act: Callable[[], Any]) -> Any:
    with open(path, "a") as file:
        file.write("x")
    return act()


def unsendable() -> Any:
    return threading.Lock()


def test_some_ends_are_final(method: str, tmp_path: Path) -> None:
    """A table of them: ``supervisor/test_restart_rules.py``."""
    path = tmp_path / "attempts"
    error = failure(method, counts, str(path), unsendable, nprocs=1, max_restarts=3, join=True)
    assert error.history == ()
    assert path.read_text() == "x"


def always_the_same() -> None:
    raise ValueError(f"no such label: {object()}")


def test_the_same_exception_twice_ends_the_restarts(method: str, tmp_path: Path) -> None:
    path = tmp_path / "attempts"
    error = failure(method, counts, str(path), always_the_same, nprocs=1, max_restarts=3)
    assert path.read_text() == "xx"
    assert len(error.history) == 1
    earlier = str(error).split("\n\n")[-2].splitlines()
    assert earlier[0] == "Earlier attempts (max_restarts=3):"
    assert earlier[-1] == restarts.CANNOT_HELP
    assert earlier[-1].startswith("restarting cannot help: the same exception at the same line")


def unreachable() -> None:
    raise ConnectionRefusedError("the data are not there yet")


def test_what_may_pass_is_tried_again_later(
    method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "attempts"
    error = failure(method, counts, str(path), unreachable, nprocs=1, max_restarts=1)
    assert path.read_text() == "xx"
    assert "cannot help" not in str(error)
    assert (
        "xmp: restart 1 of 1 in 1 s: rank 0 raised ConnectionRefusedError" in capfd.readouterr().err
    )


def test_the_time_before_an_attempt_is_that_of_nobody(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join with a limit returns, a request to end is heard at once."""
    monkeypatch.setattr(restarts, "rest", lambda failure, restarts: 600.0)
    path = tmp_path / "attempts"
    context = launch(
        method, counts, str(path), unreachable, nprocs=1, max_restarts=1, join=False, grace=1
    )
    (pid,) = context.pids()
    until(lambda: not psutil.pid_exists(pid))
    assert context.join(timeout=0.1) is False
    got: list[BaseException] = []

    def join() -> None:
        try:
            context.join()
        except xmp.ReplicaError as error:
            got.append(error)

    thread = threading.Thread(target=join)
    thread.start()
    restarting: Any = context._launch
    until(lambda: bool(restarting._maker))
    context.terminate()
    thread.join(20)
    assert [each.history for each in got] == [()]  # type: ignore[attr-defined]
    assert path.read_text() == "x"


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_arguments_that_cannot_be_sent_are_refused_once(method: str) -> None:
    with pytest.raises(TypeError):
        launch(method, lambda rank, lock: None, threading.Lock(), max_restarts=3)


@pytest.mark.parametrize("moment", ["running", "failed"])
def test_terminate_ends_it(method: str, moment: str) -> None:
    fn = always_fails if moment == "failed" else lambda rank: never_returns()
    context = launch(method, fn, max_restarts=3, join=False, grace=1)
    first = context.pids()
    if moment == "failed":
        until(lambda: not any(psutil.pid_exists(pid) for pid in first))
    context.terminate()
    assert context.pids() == first
    with pytest.raises(xmp.ReplicaError) as caught:
        context.join()
    assert caught.value.history == ()
    assert context.pids() == first


def test_an_end_that_one_thread_asks_for_holds_for_all_that_wait(method: str) -> None:
    context = launch(method, lambda rank: never_returns(), max_restarts=3, join=False, grace=1)
    first, got = context.pids(), []

    def join() -> None:
        try:
            context.join()
        except xmp.ReplicaError as error:
            got.append(error.history)

    thread = threading.Thread(target=join)
    thread.start()
    context._launch.ask(Stop())  # as terminate() does, which then waits itself
    thread.join(20)
    assert got == [()]
    assert context.pids() == first


INTERRUPTED = """
import os, signal, sys, threading, time
import xmp

pressed = threading.Event()

def attempts():
    return len([name for name in os.listdir(".") if name.startswith("attempt-")])

class Slow:
    def __reduce__(self):
        if attempts():  # the launcher packs it for the second attempt
            open("packing", "w").close()
            pressed.wait(20)
        return int, ()

def fn(rank, slow):
    open(f"attempt-{xmp.restart_count()}-{rank}", "w").close()
    if xmp.restart_count() == 0 and sys.argv[2] != "running":
        os._exit(4)
    while True:
        time.sleep(0.1)  # a SIGINT just before pause() would wait for the next signal

def main_waits():
    frame, names = sys._current_frames()[threading.main_thread().ident], set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return {"join", "wait"} <= names

def press(name):
    while not (os.path.exists(name) and main_waits()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    pressed.set()

if __name__ == "__main__":
    method, moment = sys.argv[1], sys.argv[2]
    context = xmp.spawn(fn, (Slow(),), nprocs=1, runtime="cpu", join=False, max_restarts=5,
                        grace=600, start_method=method)
    mark = "attempt-0-0" if moment == "running" else "packing"
    threading.Thread(target=press, args=(mark,), daemon=True).start()
    if moment == "elsewhere":
        threading.Thread(target=context.join, daemon=True).start()
        while not os.path.exists("packing"):
            time.sleep(0.01)
    try:
        context.join()
    except KeyboardInterrupt:
        print("interrupted")
    try:
        context.join()
    except xmp.ReplicaError as error:
        gone = not any(os.path.exists(f"/proc/{pid}") for pid in context.pids())
        print(sorted(name for name in os.listdir(".") if "attempt" in name))
        print(len(error.history), gone)
"""


PACKED = [(m, at) for m in ("forkserver", "spawn") for at in ("restarting", "elsewhere")]


@pytest.mark.parametrize(("method", "moment"), [*((m, "running") for m in METHODS), *PACKED])
def test_ctrl_c_starts_no_new_attempt(
    method: str, moment: str, script: Script, tmp_path: Path
) -> None:
    done = script(INTERRUPTED, method, moment, cwd=tmp_path)
    interrupted, attempts, preempted = done.out.splitlines()
    assert interrupted == "interrupted", done
    assert attempts.startswith("['attempt-0-0'"), done
    assert "attempt-2" not in attempts
    # Made by another thread, the second attempt came to be, and was ended at once.
    assert preempted in (("0 True", "1 True") if moment == "elsewhere" else ("0 True",)), done


def test_a_forked_child_of_the_launcher_restarts_nothing(method: str) -> None:
    context = launch(method, always_fails, max_restarts=2, join=False, grace=1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            context.join()
        except xmp.XmpError as error:
            code = 0 if "which launched it" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(xmp.ReplicaRaised):
        context.join()


def test_an_interrupt_that_comes_with_the_start_is_not_lost(method: str) -> None:
    """A signal between a fork and Python's first steps in the child would be forgotten."""
    for _ in range(8):
        context = launch(method, lambda rank: never_returns(), nprocs=1, join=False, grace=60)
        context._launch.ask(Interrupt())
        with pytest.raises(xmp.ReplicaError):
            context.join()
