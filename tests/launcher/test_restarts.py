"""``max_restarts=``: a launch that fails is started again, as a whole."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import always_fails, failure, launch, never_returns
from tests.support.stage import Script
from tests.support.waiting import until
from xmp._processes.launcher.launch import Launch
from xmp._processes.messages.launch import Pause, Resume, TakeStacks

pytestmark = pytest.mark.failing


def fails_twice(rank: int) -> tuple[int, int, str]:
    if rank == 1 and xmp.restart_count() < 2:
        raise ValueError(f"attempt {xmp.restart_count()}")
    return xmp.restart_count(), os.getpid(), os.environ["MASTER_PORT"]


@pytest.mark.each_method
def test_all_replicas_are_started_again(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    results = launch(method, fails_twice, max_restarts=3)
    assert [count for count, _, _ in results] == [2] * 2
    assert len({pid for _, pid, _ in results}) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("xmp: ")]
    assert lines == [
        "xmp: restart 1 of 3: rank 1 raised ValueError: attempt 0",
        "xmp: restart 2 of 3: rank 1 raised ValueError: attempt 1",
    ]
    assert all(results.timeline[rank].seconds()["entered"] > 0 for rank in range(2))


def test_each_attempt_has_ports_and_a_supervisor_of_its_own(method: str, tmp_path: Path) -> None:
    def fn(rank: int, folder: str) -> None:
        name = f"{xmp.restart_count()}-{rank}"
        Path(folder, name).write_text(f"{os.environ['MASTER_PORT']} {os.getppid()}")
        xmp.init_process_group()
        assert xmp.all_reduce(1) == 2
        if xmp.restart_count() < 2:
            raise ValueError(name)

    launch(method, fn, str(tmp_path), max_restarts=2)
    said = {path.name: path.read_text().split() for path in tmp_path.iterdir()}
    assert sorted(said) == [f"{count}-{rank}" for count in range(3) for rank in range(2)]
    for which in range(2):
        assert len({words[which] for words in said.values()}) == 3


def test_the_last_error_lists_those_before(method: str) -> None:
    error = failure(method, always_fails, max_restarts=2)
    assert isinstance(error, xmp.ReplicaRaised)
    text = str(error)
    assert text.startswith("rank 1 of 2 ")
    assert text.splitlines()[0].endswith("raised ValueError: attempt 2 [XMP-R01]")
    head, *lines = text.split("\n\n")[-2].splitlines()
    assert head == "Earlier attempts (max_restarts=2):"
    assert len(lines) == 2
    assert text.endswith("\nValueError: attempt 2")
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
    assert "Earlier attempts" not in str(error)
    assert list(launch(method, lambda rank: xmp.restart_count(), max_restarts=2)) == [0, 0]


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_events_tell_of_all_attempts(method: str, ends: str) -> None:
    seen: list[xmp.Event] = []
    if ends == "well":
        launch(method, fails_twice, max_restarts=2, events=seen.append)
    else:
        failure(method, fails_twice, max_restarts=1, events=seen.append)
    last = 2 if ends == "well" else 1
    launches = [(event.name, event.restart) for event in seen if event.name == "planned"]
    assert launches == [("planned", count) for count in range(last + 1)]
    assert [event.rank for event in seen if event.name == "verdict"] == [1, 1]
    assert [event.name for event in seen].index("finished") == len(seen) - 1
    assert seen[-1].message == ("" if ends == "well" else "ReplicaRaised")
    assert len({event.launch_id for event in seen}) == 1
    assert [event.elapsed for event in seen] == sorted(event.elapsed for event in seen)


def test_one_replica_is_a_process_of_its_own() -> None:
    def fn(rank: int) -> int:
        if xmp.restart_count() == 0:
            os.abort()
        return os.getpid()

    assert list(xmp.spawn(fn, nprocs=1, runtime="cpu", max_restarts=1)) != [os.getpid()]


# --- what is a failure: what is not stands in test_no_restart.py ----------------------------------


def dies(rank: int, how: str) -> int:
    if rank == 0 and xmp.restart_count() == 0:
        if how == "exits":
            os._exit(3)
        os.kill(os.getppid(), signal.SIGKILL)
        never_returns()
    return xmp.restart_count()


@pytest.mark.parametrize("how", ["exits", "supervisor"])
def test_a_replica_or_the_supervisor_dies(
    method: str, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A table of all ends: ``supervisor/test_restart_rules.py``."""
    lines = {
        "exits": "rank 0 ended with exit code 3",
        "supervisor": "the supervisor ended early: killed by SIGKILL",
    }
    assert set(launch(method, dies, how, max_restarts=1, grace=1)) == {1}
    assert f"xmp: restart 1 of 1: {lines[how]}" in capfd.readouterr().err


LATE = """
import os, signal, sys, time
import xmp

def fn(rank):
    return xmp.restart_count()

if __name__ == "__mp_main__" and os.path.exists("late"):
    os.rename("late", "in-time")
    signal.pause()

if __name__ == "__main__":
    open("late", "w").close()
    limit = float(sys.argv[1])
    try:
        begin = time.monotonic()
        print(list(xmp.spawn(fn, nprocs=1, runtime="cpu", start_method="spawn", grace=0.5,
                             max_restarts=1, start_timeout=limit)))
        print(time.monotonic() - begin > limit)
    except xmp.XmpError as error:
        print(error)
"""


@pytest.mark.first_pass
def test_each_attempt_has_its_time_to_start(script: Script, tmp_path: Path) -> None:
    for limit in (1, 2, 4, 8, 16):  # where the machine is busy, both are late for the first
        done = script(LATE, str(limit), cwd=tmp_path, timeout=60)
        if done.out.startswith("[1]"):
            break
    assert done.out.splitlines() == ["[1]", "True"], done
    assert f"xmp: restart 1 of 1: start_timeout={limit}: rank 0 of 1 on " in done.err


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
    until(lambda: all((tmp_path / f"0-{rank}").exists() for rank in range(2)), 25)
    (tmp_path / "go-0").touch()
    until(lambda: (tmp_path / "1-1").exists(), 25)
    assert context.join(timeout=0.01) is False
    # Its replicas may run before the launcher has read that they were made.
    until(lambda: not set(first) & set(context.pids()))
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
    assert got[0].count("Earlier attempts") == 1


NEVER_JOINED = """
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
def test_at_exit_an_unjoined_launch_is_driven(
    method: str, what: str, script: Script, tmp_path: Path
) -> None:
    done = script(NEVER_JOINED, method, what, cwd=tmp_path)
    assert done.code == 0, done.err
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1"}, done.err
    assert "restart 2 of 2: rank" in done.err


def test_shared_tensors_keep_what_an_attempt_wrote(method: str) -> None:
    import numpy as np
    import torch

    def fn(rank: int, shared: Any, array: Any) -> float:
        shared[0] += 1
        array += 1
        if xmp.restart_count() < 2:
            raise ValueError(f"attempt {xmp.restart_count()}")  # the same text twice would end it
        return float(array[0])

    shared, array = torch.zeros(1), np.zeros(1)
    assert list(launch(method, fn, shared, array, nprocs=1, max_restarts=2)) == [1.0]
    assert shared.tolist() == [0.0 if method == "fork" else 3.0]


def fails_when_asked(rank: int, folder: Path) -> int:
    (folder / f"in-fn-{rank}").touch()
    until((folder / "go").exists, 60)
    if rank == 1 and not xmp.restart_count():
        raise ValueError("no such label")
    return xmp.restart_count()


def test_a_request_that_ends_nothing_forbids_no_restart(method: str, tmp_path: Path) -> None:
    context = xmp.spawn(
        fails_when_asked, (tmp_path,), 2, join=False, start_method=method, max_restarts=1
    )
    until(lambda: len(list(tmp_path.glob("in-fn-*"))) == 2, 30)
    for request in (TakeStacks(), Pause(), Resume()):
        context._launch.ask(request)
    (tmp_path / "go").touch()
    assert list(context.results()) == [1, 1]


@pytest.mark.parametrize("joined", [True, False])
def test_each_attempt_hears_other_hosts_while_the_program_does_something_else(
    joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[Launch] = []
    monkeypatch.setattr(Launch, "watch_alone", lambda attempt: watched.append(attempt))
    found: Any = xmp.spawn(fails_twice, nprocs=2, runtime="cpu", join=joined, max_restarts=2)
    assert joined or found.join()
    assert len({id(attempt) for attempt in watched}) == (0 if joined else 3)
