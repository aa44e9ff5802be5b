"""A launch that takes too long ends, and its error says where every replica was."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import xmp
from tests.support.launching import BEGIN, launch, never_returns
from tests.support.stage import Script
from tests.support.waiting import until
from xmp._inside.frameworks.torch_dist import enter as join
from xmp._processes.report.stack_texts import not_in_function

pytestmark = pytest.mark.failing


def waits_in_here() -> None:
    while True:  # not never_returns(): the innermost frame is looked for
        signal.pause()


def stuck(rank: int, begun: str | None = None) -> None:
    if begun:
        Path(begun, str(rank)).touch()
    waits_in_here()


def timeout(method: str, fn: Any, *args: Any, **options: Any) -> xmp.ReplicaTimeout:
    with pytest.raises(xmp.ReplicaTimeout) as caught:
        launch(method, fn, *args, **options)
    return caught.value


LIMITS = (4, 8, 16, 32)
"""The time counts from the call: where the machine is busy, replicas need more of it to begin."""


def timeout_after(
    method: str, fn: Any, folder: Path, nprocs: int = 2
) -> tuple[int, xmp.ReplicaTimeout]:
    """Return the first of the limits a second before which all had touched a file, and its error.

    ``fn`` takes the folder of these files.
    """
    for limit in LIMITS:
        begun = folder / str(limit)
        begun.mkdir()
        began, called = time.monotonic(), time.time()
        error = timeout(method, fn, str(begun), nprocs=nprocs, timeout=limit)
        assert time.monotonic() - began > limit - 0.1
        times = [path.stat().st_mtime for path in begun.iterdir()]
        if len(times) == nprocs and max(times) < called + limit - 1:
            break
    return limit, error


@pytest.mark.each_method
def test_a_call_that_takes_longer_than_its_timeout(method: str, tmp_path: Path) -> None:
    limit, error = timeout_after(method, stuck, tmp_path, nprocs=3)
    said = f"timeout={limit}: not done {limit} s after the call: ranks 0-2 of 3 on "
    assert str(error).startswith(said)
    assert sorted(error.stacks) == [0, 1, 2]
    assert all("waits_in_here" in text for text in error.stacks.values())
    assert str(error).count("waits_in_here") == 1, "equal stacks are shown once"
    assert "_processes" not in str(error), "without our own frames"
    assert isinstance(error, TimeoutError)
    assert {failure.label for failure in error.failures} == {"stopped by xmp"}
    assert error.pid > 0


def half(rank: int, begun: str | None = None) -> str:
    if begun:
        Path(begun, str(rank)).touch()
    if rank == 1:
        waits_in_here()
    return "done"


def test_what_was_finished_in_time_is_kept(method: str, tmp_path: Path) -> None:
    limit, error = timeout_after(method, half, tmp_path)
    assert dict(error.results) == {0: "done"}
    assert (error.rank, error.local_rank) == (1, 1)
    said = f"timeout={limit}: not done {limit} s after the call: rank 1 of 2 on "
    assert str(error).startswith(said)
    assert str(error).partition("\n")[0].endswith(" rank 0 had finished [XMP-T01]")
    assert "rank 0:" not in str(error), "what a finished rank waits for says nothing of the hang"


def test_in_time_is_in_time(method: str) -> None:
    got = launch(method, lambda rank: rank, timeout=60, start_timeout=60, hang_timeout=60)
    assert list(got) == [0, 1]


@pytest.mark.parametrize("name", ["timeout", "start_timeout", "hang_timeout", "grace"])
def test_months_are_in_time_as_well(name: str) -> None:
    months: dict[str, Any] = {name: 1e7}
    context = launch("forkserver", lambda rank: rank, join=False, **months)
    assert context.join(timeout=1e7) is True
    assert list(context.results()) == [0, 1]


def test_a_context_raises_it_when_it_is_joined(method: str) -> None:
    context = launch(method, stuck, join=False, timeout=4)
    with pytest.raises(xmp.ReplicaTimeout):
        context.results()
    assert not any(process.is_alive() for process in context.processes)


def test_a_supervisor_that_is_stopped_is_not_waited_for(method: str) -> None:
    began = time.monotonic()
    context = launch(method, stuck, join=False, timeout=3)
    supervisor = psutil.Process(context.pids()[0]).ppid()
    os.kill(supervisor, signal.SIGSTOP)
    with pytest.raises(xmp.ReplicaTimeout, match=f"supervisor {supervisor} did not end the launch"):
        context.join()
    assert time.monotonic() - began > 2.9
    until(lambda: not psutil.pid_exists(supervisor))


def stops_its_supervisor(rank: int) -> None:
    if rank == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
    never_returns()


@pytest.mark.each_method
def test_a_supervisor_that_is_stopped_while_it_makes_replicas(method: str) -> None:
    """It cannot notice that its launcher has given up."""
    error = timeout(method, stops_its_supervisor, nprocs=16, timeout=4)
    assert isinstance(error, TimeoutError)


# --- the start ---------------------------------------------------------------------------------

STUCK = """
import multiprocessing.util, os, signal, sys
import xmp

def begun():
    open(f"{__file__}.{sys.argv[2]}.{os.environ['RANK']}", "w").close()

def stuck_here(_=None):
    while os.environ.get("RANK") == "1":
        begun()
        signal.pause()

if __name__ == "__main__":
    multiprocessing.util.register_after_fork(stuck_here, stuck_here)
else:  # in a replica by fork that was run already, in one by exec it is now
    multiprocessing.util.register_after_fork(stuck_here, stuck_here)
    stuck_here()

def fn(rank):
    begun()

if __name__ == "__main__":
    try:
        xmp.spawn(fn, nprocs=2, runtime="cpu", start_method=sys.argv[1],
                  start_timeout=float(sys.argv[2]))
    except xmp.ReplicaTimeout as error:
        print(error.rank, "stuck_here" in error.stacks[1], sorted(error.stacks))
        print(error)
"""


def test_a_replica_that_never_reaches_the_function(
    method: str, script: Script, tmp_path: Path
) -> None:
    for limit in LIMITS:
        done = script(STUCK, method, str(limit))
        if all((tmp_path / f"train.py.{limit}.{rank}").exists() for rank in range(2)):
            break
    first, second, *_ = done.out.splitlines()
    assert first.startswith("1 True "), done
    assert second.startswith(f"start_timeout={limit}: rank 1 of 2 on "), done
    assert second.endswith(f" reached the function {limit} s after the call [XMP-T02]"), done


@pytest.mark.slow
@pytest.mark.first_pass
def test_after_30_seconds_it_is_said_where_everybody_is(script: Script) -> None:
    done = script(STUCK, "forkserver", "34", timeout=100)
    (said,) = [line for line in done.err.splitlines() if line.startswith("xmp: after 30 s")]
    assert "1 of 2 replicas have not reached the function: rank 1: starting (File " in said
    assert said.endswith("in stuck_here)")


def test_replicas_in_the_same_place_are_listed_together() -> None:
    here = 'Current thread 0x1 (most recent call first):\n  File "/x/train.py", line 3 in main\n'
    file = join.__code__.co_filename
    stacks = {0: here, 1: here, 2: here.replace("/x/train.py", file)}
    first, second = not_in_function(stacks, 3, 30).rstrip().partition("function: ")[2].split("; ")
    assert first == 'ranks 0-1: starting (File "/x/train.py", line 3 in main)'
    assert second.startswith("rank 2: starting the runtime and joining the others (File ")


IMPORT = """
import signal
import xmp

while __name__ != "__main__":
    signal.pause()

def fn(rank):
    return rank

if __name__ == "__main__":
    try:
        xmp.spawn(fn, nprocs=2, runtime="cpu", start_timeout=3)
    except xmp.ReplicaTimeout as error:
        print(error)
"""


def test_a_script_whose_import_does_not_end(script: Script) -> None:
    done = script(IMPORT)
    assert done.out.startswith("start_timeout=3: 3 s after the call no replica exists yet: "), done
    assert done.out.endswith("train.py is being imported [XMP-T02]\n"), done


class SlowToLoad:
    def __reduce__(self) -> Any:
        return time.sleep, (600,)


@pytest.mark.first_pass
def test_an_argument_that_does_not_load() -> None:
    launch("forkserver", lambda rank: rank)  # the template is up
    error = timeout("forkserver", lambda rank, _: rank, SlowToLoad(), start_timeout=2)
    assert "the supervisor is loading the function and its arguments" in str(error)
    assert list(launch("forkserver", lambda rank: rank)) == [0, 1]


# --- hanging -----------------------------------------------------------------------------------


def test_a_hang_ends_with_everybodys_stacks(method: str) -> None:
    error = timeout(method, stuck, hang_timeout=1)
    assert str(error).startswith("hang_timeout=1: no progress for 1 s: ")
    assert all("waits_in_here" in text for text in error.stacks.values())


def holds_the_lock(rank: int) -> None:
    ctypes.PyDLL(None).sleep(600)


def test_native_code_that_holds_the_interpreter_lock_hangs(method: str) -> None:
    error = timeout(method, holds_the_lock, hang_timeout=1, grace=1)
    assert "holds_the_lock" in error.stacks[0]


def busy(rank: int) -> int:
    end, steps = time.monotonic() + 3, 0
    while time.monotonic() < end:
        steps += 1
    return steps


def test_an_interpreter_that_runs_does_not_hang(method: str) -> None:
    assert all(steps > 0 for steps in launch(method, busy, hang_timeout=1))


def one_long_call_after_another(rank: int) -> None:
    for _ in range(8):
        time.sleep(0.4)  # waits for nothing: calls of this length are what is tested


def test_a_main_thread_that_is_seldom_in_python_does_not_hang(method: str) -> None:
    launch(method, one_long_call_after_another, hang_timeout=1)


def works_in_a_thread(rank: int, beats: bool) -> None:
    def work() -> None:
        for _ in range(30):
            time.sleep(0.1)
            if beats:
                xmp.heartbeat()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()


def test_a_program_can_say_that_it_gets_on(method: str) -> None:
    launch(method, works_in_a_thread, True, hang_timeout=1)
    error = timeout(method, works_in_a_thread, False, hang_timeout=1)
    assert "works_in_a_thread" in error.stacks[0]


def busy_or_waiting(rank: int, over: Any) -> None:
    if rank == 0:
        busy(rank)
        over.set()
    assert over.wait(20)


def test_one_replica_that_gets_on_is_enough(method: str) -> None:
    over = multiprocessing.get_context("spawn").Event()
    launch(method, busy_or_waiting, over, hang_timeout=1)


def test_divergence_is_named(method: str) -> None:
    error = timeout(method, half, nprocs=3, hang_timeout=1)
    assert str(error).startswith("hang_timeout=1: ranks 0, 2 had finished while rank 1 of 3 on ")
    assert "diverged" in str(error)
    assert dict(error.results) == {0: "done", 2: "done"}


def leaves_a_thread(rank: int) -> str:
    threading.Thread(target=waits_in_here).start()
    return "done"


def test_a_replica_that_does_not_end_has_not_diverged(method: str) -> None:
    error = timeout(method, leaves_a_thread, hang_timeout=1)
    assert str(error).startswith("hang_timeout=1: every function has returned, but ranks 0-1 of 2 ")
    assert all("waits_in_here" in text for text in error.stacks.values())
    assert dict(error.results) == {0: "done", 1: "done"}


def test_a_heart_leaves_ctrl_c_alone(method: str, tmp_path: Path) -> None:
    """It takes no signal: an interrupt of a replica arrives as ever."""

    def fn(rank: int, path: str) -> str:
        try:
            while True:
                time.sleep(0.01)
                if rank == 0 and os.path.exists(path):
                    os.kill(os.getpid(), 2)
        except KeyboardInterrupt:
            return "interrupted"

    path = tmp_path / "go"
    context = launch(method, fn, str(path), nprocs=1, hang_timeout=5, join=False)
    path.touch()
    assert list(context.results()) == ["interrupted"]


def test_outside_a_launch_a_heartbeat_is_nothing() -> None:
    xmp.heartbeat()


def test_without_hang_timeout_a_heartbeat_is_nothing(method: str) -> None:
    def fn(rank: int) -> int:
        xmp.heartbeat()
        return threading.active_count()

    assert max(launch(method, fn)) <= 1 + bool(os.environ.get("XMP_WITHOUT"))


UNREAD = (
    BEGIN
    + """
from xmp._processes.launcher import deadlines

def fn(rank):
    os.write(1, b"x" * 200_000)

if __name__ == "__main__":
    deadlines._TO_END = 1.0  # seconds
    try:
        start(fn, prefix=True, timeout=2, grace=0.1)
    except xmp.ReplicaTimeout as error:
        os.write(2, str(error).encode())
"""
)


def test_unread_output_is_named_as_the_cause(tmp_path: Path) -> None:
    """All replicas have ended; the supervisor has what they wrote, and no process reads it."""
    (tmp_path / "unread.py").write_text(UNREAD)
    command = [sys.executable, str(tmp_path / "unread.py"), "forkserver"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stderr is not None
        try:
            said = process.stderr.read()
        finally:
            process.kill()
    assert "timeout=2: all replicas have ended" in said, said
    assert "nothing reads the launcher's standard output or error" in said
