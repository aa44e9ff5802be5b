"""``max_restarts=``: what fails is started anew, as a whole, and what was wished for is not."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from _behaviour import METHODS, Script, failure, launch, never_returns, wait_until

import xmp


def fails_twice(rank: int) -> tuple[int, int, str]:
    if rank == 2 and xmp.restart_count() < 2:
        raise ValueError(f"attempt {xmp.restart_count()}")
    return xmp.restart_count(), os.getpid(), os.environ["MASTER_PORT"]


def test_the_whole_gang_is_started_anew(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    results = launch(method, fails_twice, nprocs=4, max_restarts=3)
    assert [count for count, _, _ in results] == [2] * 4
    assert len({pid for _, pid, _ in results}) == 4
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("xmp: ")]
    assert lines == [
        "xmp: restart 1 of 3: rank 2 raised ValueError: attempt 0",
        "xmp: restart 2 of 3: rank 2 raised ValueError: attempt 1",
    ]
    assert all(results.timeline[rank].seconds()["entered"] > 0 for rank in range(4))


def test_each_attempt_has_ports_and_a_supervisor_of_its_own(method: str, tmp_path: Path) -> None:
    def fn(rank: int, folder: str) -> None:
        name = f"{xmp.restart_count()}-{rank}"
        Path(folder, name).write_text(f"{os.environ['MASTER_PORT']} {os.getppid()}")
        xmp.init_process_group()
        assert xmp.all_reduce(1) == 2
        if xmp.restart_count() < 2:
            raise ValueError

    launch(method, fn, str(tmp_path), max_restarts=2)
    said = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert sorted(said) == [f"{count}-{rank}" for count in range(3) for rank in range(2)]
    for which in range(2):
        assert len({words[which] for words in said.values()}) == 3


def always_fails(rank: int) -> None:
    if rank == 1:
        raise ValueError(f"attempt {xmp.restart_count()}")
    never_returns()


def test_the_last_error_tells_of_those_before(method: str) -> None:
    error = failure(method, always_fails, max_restarts=2)
    assert isinstance(error, xmp.ReplicaRaised)
    text = str(error)
    assert text.startswith("rank 1 of 2 ")
    assert text.splitlines()[0].endswith("raised ValueError: attempt 2")
    head, *lines = text.split("\n\n")[-1].splitlines()
    assert head == "Attempts before (max_restarts=2):"
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, after \d+\.\d s"
    for count, line in enumerate(lines):
        said = rf"  {count + 1}: {when}: rank 1 raised ValueError: attempt {count}"
        assert re.fullmatch(said, line), line
    assert [str(past.__cause__) for past in error.history] == ["attempt 0", "attempt 1"]
    assert [past.rank for past in error.history] == [1, 1]  # type: ignore[attr-defined]
    assert str(error.__cause__) == "attempt 2"


def test_without_a_failure_there_is_no_history(method: str) -> None:
    error = failure(method, always_fails)
    assert error.history == ()
    assert "Attempts before" not in str(error)
    assert list(launch(method, lambda rank: xmp.restart_count(), max_restarts=2)) == [0, 0]


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_events_tell_of_all_attempts(method: str, ends: str) -> None:
    told: list[xmp.Event] = []
    if ends == "well":
        launch(method, fails_twice, nprocs=4, max_restarts=2, events=told.append)
    else:
        failure(method, fails_twice, nprocs=4, max_restarts=1, events=told.append)
    last = 2 if ends == "well" else 1
    launches = [(event.name, event.restart) for event in told if event.name == "planned"]
    assert launches == [("planned", count) for count in range(last + 1)]
    assert [event.rank for event in told if event.name == "verdict"] == [2, 2]
    assert [event.name for event in told].index("finished") == len(told) - 1
    assert told[-1].words == ("" if ends == "well" else "ReplicaRaised")
    assert len({event.launch for event in told}) == 1
    assert [event.at for event in told] == sorted(event.at for event in told)


def test_one_replica_is_a_process_of_its_own() -> None:
    def fn(rank: int) -> int:
        if xmp.restart_count() == 0:
            os.abort()
        return os.getpid()

    assert list(xmp.spawn(fn, nprocs=1, runtime="cpu", max_restarts=1)) != [os.getpid()]


# --- what is a failure -------------------------------------------------------------------------


def dies(rank: int, how: str) -> int:
    if rank == 0 and xmp.restart_count() == 0:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "exits":
            os._exit(3)
        elif how == "supervisor":
            os.kill(os.getppid(), signal.SIGKILL)
        never_returns()
    return xmp.restart_count()


@pytest.mark.parametrize("how", ["killed", "exits", "supervisor", "hangs"])
def test_a_failure_of_any_kind(method: str, how: str, capfd: pytest.CaptureFixture[str]) -> None:
    told = {
        "killed": "rank 0 was killed by SIGKILL",
        "exits": "rank 0 ended with exit code 3",
        "supervisor": "the supervisor ended early: killed by SIGKILL",
        "hangs": "hang_timeout=1: ",
    }
    limit = 1 if how == "hangs" else None
    assert set(launch(method, dies, how, max_restarts=1, grace=1, hang_timeout=limit)) == {1}
    assert f"xmp: restart 1 of 1: {told[how]}" in capfd.readouterr().err


LATE = """
import os, time
import xmp

def fn(rank):
    return xmp.restart_count()

if __name__ == "__mp_main__" and os.path.exists("late"):
    os.rename("late", "in-time")
    time.sleep(600)

if __name__ == "__main__":
    open("late", "w").close()
    try:
        begin = time.monotonic()
        print(list(xmp.spawn(fn, nprocs=1, runtime="cpu", start_method="spawn", grace=0.5,
                             max_restarts=1, start_timeout=5)))
        print(time.monotonic() - begin > 5)
    except xmp.XmpError as error:
        print(error)
"""


@pytest.mark.first_pass
def test_each_attempt_has_its_time_to_start(script: Script, tmp_path: Path) -> None:
    done = script(LATE, cwd=tmp_path, timeout=40)
    assert done.out.splitlines() == ["[1]", "True"], done
    assert "xmp: restart 1 of 1: start_timeout=5: rank 0 of 1 on " in done.err


# --- what is not -------------------------------------------------------------------------------


def test_the_whole_call_has_one_timeout(method: str) -> None:
    def fn(rank: int) -> None:
        if xmp.restart_count() == 0:
            raise ValueError("once")
        never_returns()

    error = failure(method, fn, max_restarts=5, timeout=3, grace=1)
    assert isinstance(error, xmp.ReplicaTimeout)
    assert str(error).startswith("timeout=3: not done 3 s after the call")
    assert len(error.history) == 1


def counts(rank: int, path: str, act: Callable[[], Any]) -> Any:
    with open(path, "a") as file:
        file.write("x")
    return act()


def interrupt() -> None:
    raise KeyboardInterrupt


def unsendable() -> Any:
    return threading.Lock()


@pytest.mark.parametrize("act", [interrupt, unsendable])
def test_some_ends_are_final(method: str, tmp_path: Path, act: Callable[[], Any]) -> None:
    path = tmp_path / "attempts"
    error = failure(method, counts, str(path), act, nprocs=1, max_restarts=3, join=True)
    assert error.history == ()
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
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in first))
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
    context._launch.ask("stop")  # as terminate() does, which then waits itself
    thread.join(20)
    assert got == [()]
    assert context.pids() == first


# --- join=False --------------------------------------------------------------------------------


def waits_for_a_file(rank: int, folder: str) -> int:
    Path(folder, f"{xmp.restart_count()}-{rank}").touch()
    while not Path(folder, f"go-{xmp.restart_count()}").exists():
        signal.sigtimedwait([], 0.01)
    if xmp.restart_count() == 0:
        raise ValueError("first")
    return xmp.restart_count()


def test_many_threads_join_and_one_restarts(method: str, tmp_path: Path) -> None:
    context = launch(method, waits_for_a_file, str(tmp_path), max_restarts=2, join=False)
    first, plan = context.pids(), context.plan
    assert context.join(timeout=0) is False
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(context.results())) for _ in range(4)]
    for thread in threads:
        thread.start()
    (tmp_path / "go-0").touch()
    wait_until(lambda: (tmp_path / "1-1").exists(), 25)
    assert context.join(timeout=0.01) is False
    second = context.pids()
    assert not set(first) & set(second)
    assert context.plan != plan
    (tmp_path / "go-1").touch()
    for thread in threads:
        thread.join(20)
    assert [list(results) for results in got] == [[1, 1]] * 4
    assert [process.exitcode for process in context.processes] == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("go-0", "go-1", "0-0", "0-1", "1-0", "1-1")
    }


def test_threads_that_wait_get_the_same_error(method: str) -> None:
    context = launch(method, always_fails, max_restarts=1, join=False, grace=1)
    got: list[str] = []

    def join() -> None:
        with pytest.raises(xmp.ReplicaRaised) as caught:
            context.join()
        got.append(str(caught.value))

    threads = [threading.Thread(target=join) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    join()
    assert len(got) == 4
    assert len(set(got)) == 1
    assert got[0].count("Attempts before") == 1


NOBODY_JOINS = """
import os, sys
import xmp

def fn(rank):
    if xmp.restart_count() < 2:
        os._exit(4)
    open(f"done-{rank}", "w").close()

if __name__ == "__main__":
    context = xmp.spawn(fn, nprocs=2, runtime="cpu", join=False, max_restarts=2,
                        start_method=sys.argv[1])
    if sys.argv[2] == "another":
        list(xmp.spawn(print, nprocs=2, runtime="cpu"))
    del context
"""


@pytest.mark.parametrize("what", ["nothing", "another"])
def test_at_exit_a_launch_that_nobody_joined_is_driven(
    method: str, what: str, script: Script, tmp_path: Path
) -> None:
    done = script(NOBODY_JOINS, method, what, cwd=tmp_path)
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1"}, done.err
    assert "restart 2 of 2: rank" in done.err


def test_shared_tensors_keep_what_an_attempt_wrote(method: str) -> None:
    torch = pytest.importorskip("torch")
    import numpy as np

    def fn(rank: int, shared: Any, array: Any) -> float:
        shared[0] += 1
        array += 1
        if xmp.restart_count() < 2:
            raise ValueError
        return float(array[0])

    shared, array = torch.zeros(1), np.zeros(1)
    assert list(launch(method, fn, shared, array, nprocs=1, max_restarts=2)) == [1.0]
    assert shared.tolist() == [0.0 if method == "fork" else 3.0]


# --- the user's wish ---------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys, threading, time
import xmp

def attempts():
    return len([name for name in os.listdir(".") if name.startswith("attempt-")])

class Slow:
    def __reduce__(self):
        if attempts():  # the launcher packs it for the second attempt
            open("packing", "w").close()
            time.sleep(1)
        return int, ()

def fn(rank, slow):
    open(f"attempt-{xmp.restart_count()}-{rank}", "w").close()
    if xmp.restart_count() == 0 and sys.argv[2] != "running":
        os._exit(4)
    while True:
        signal.pause()

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

if __name__ == "__main__":
    method, moment = sys.argv[1], sys.argv[2]
    context = xmp.spawn(fn, (Slow(),), nprocs=1, runtime="cpu", join=False, max_restarts=5,
                        grace=1, start_method=method)
    mark = "attempt-0-0" if moment == "running" else "packing"
    threading.Thread(target=press, args=(mark,), daemon=True).start()
    if moment == "elsewhere":
        threading.Thread(target=context.join, daemon=True).start()
        while not os.path.exists("packing"):
            time.sleep(0.01)
    begin = time.monotonic()
    try:
        context.join()
    except KeyboardInterrupt:
        assert time.monotonic() - begin < 6
        time.sleep(0.2)
        print("interrupted", sorted(name for name in os.listdir(".") if "attempt" in name))
    try:
        context.join()
    except xmp.ReplicaError as error:
        gone = not any(os.path.exists(f"/proc/{pid}") for pid in context.pids())
        print(len(error.history), gone)
"""


PACKED = [(m, at) for m in ("forkserver", "spawn") for at in ("restarting", "elsewhere")]


@pytest.mark.parametrize(("method", "moment"), [*((m, "running") for m in METHODS), *PACKED])
def test_ctrl_c_begins_nothing_anew(
    method: str, moment: str, script: Script, tmp_path: Path
) -> None:
    done = script(INTERRUPTED, method, moment, cwd=tmp_path)
    interrupted, told = done.out.splitlines()
    assert interrupted.startswith("interrupted ['attempt-0-0'"), done
    assert "attempt-2" not in interrupted
    # Made by another thread, the second attempt came to be, and was ended at once.
    assert told in (("0 True", "1 True") if moment == "elsewhere" else ("0 True",)), done


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
