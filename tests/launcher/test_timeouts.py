"""A launch that takes too long ends, and its error says where every replica was."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import xmp
from tests.support.launching import launch, never_returns
from tests.support.stage import Script, Stage
from tests.support.waiting import until

pytestmark = pytest.mark.failing


def waits_in_here() -> None:
    while True:  # not never_returns(): the innermost frame is looked for
        signal.pause()


def stuck(rank: int) -> None:
    waits_in_here()


def timeout(method: str, fn: Any, *args: Any, **options: Any) -> xmp.ReplicaTimeout:
    with pytest.raises(xmp.ReplicaTimeout) as caught:
        launch(method, fn, *args, **options)
    return caught.value


LIMITS = (1, 2, 4, 8, 16, 32)
"""The time counts from the call: where the machine is busy, replicas need more of it to begin."""


def limits(method: str, nprocs: int) -> list[int]:
    """From twice the time that such a launch takes here now, in seconds."""
    began = time.monotonic()
    launch(method, abs, nprocs=nprocs)
    first = math.ceil(2 * (time.monotonic() - began))
    return [first * more for more in LIMITS]


def timeout_after(
    method: str, fn: Any, folder: Path, nprocs: int = 2
) -> tuple[int, xmp.ReplicaTimeout]:
    """Return the first limit well before which all have touched a file, and its error.

    ``fn`` takes the folder of these files.
    """
    for limit in limits(method, nprocs):
        begun = folder / str(limit)
        begun.mkdir()
        began, called = time.monotonic(), time.time()
        error = timeout(method, fn, str(begun), nprocs=nprocs, timeout=limit)
        assert time.monotonic() - began > limit - 0.1
        times = [path.stat().st_mtime for path in begun.iterdir()]
        if len(times) == nprocs and max(times) < called + limit * 0.75:
            break
    return limit, error


def all_but_the_first(rank: int, begun: str) -> str:
    Path(begun, str(rank)).touch()
    if rank > 0:
        waits_in_here()
    return "done"


@pytest.mark.each_method
def test_a_call_that_takes_longer_than_its_timeout(method: str, tmp_path: Path) -> None:
    limit, error = timeout_after(method, all_but_the_first, tmp_path, nprocs=3)
    said = f"timeout={limit}: not done {limit} s after the call: ranks 1-2 of 3 on "
    assert str(error).startswith(said)
    assert str(error).partition("\n")[0].endswith(" rank 0 had finished [XMP-T01]")
    assert "rank 0:" not in str(error), "what a finished rank waits for says nothing of the hang"
    assert (error.rank, error.local_rank, dict(error.results)) == (1, 1, {0: "done"})
    assert sorted(error.stacks) == [1, 2]
    assert all("waits_in_here" in text for text in error.stacks.values())
    assert str(error).count("waits_in_here") == 1, "equal stacks are shown once"
    assert "_processes" not in str(error), "without our own frames"
    assert isinstance(error, TimeoutError)
    assert {failure.label for failure in error.failures} == {"stopped by xmp"}
    assert error.pid > 0


def half(rank: int) -> str:
    if rank == 1:
        waits_in_here()
    return "done"


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
    context = launch(method, stuck, join=False, hang_timeout=0.5)
    with pytest.raises(xmp.ReplicaTimeout):
        context.results()
    assert not any(process.is_alive() for process in context.processes)


def test_a_supervisor_that_is_stopped_is_not_waited_for(method: str) -> None:
    for limit in LIMITS:
        began, said = time.monotonic(), ""
        try:
            context = launch(method, stuck, join=False, timeout=limit)
            supervisor = psutil.Process(context.pids()[0]).ppid()
            os.kill(supervisor, signal.SIGSTOP)
            context.join()
        except (xmp.ReplicaTimeout, psutil.NoSuchProcess, ProcessLookupError) as error:
            said = str(error)
        if "ranks 0-1" not in said and "no replica exists yet" not in said:
            break  # else it was not stopped in time
    assert said.startswith(f"timeout={limit}: supervisor {supervisor} did not end the launch"), said
    assert time.monotonic() - began > limit - 0.1
    until(lambda: not psutil.pid_exists(supervisor))


def stops_its_supervisor(rank: int, begun: str) -> None:
    if rank == 0:
        os.kill(os.getppid(), signal.SIGSTOP)
        Path(begun, str(rank)).touch()
    never_returns()


@pytest.mark.each_method
def test_a_supervisor_that_is_stopped_while_it_makes_replicas(method: str, tmp_path: Path) -> None:
    """It cannot notice that its launcher has given up. Fresh interpreters begin after the last."""
    nprocs = 2 if method == "spawn" else 16
    for limit in limits(method, nprocs):
        error = timeout(method, stops_its_supervisor, str(tmp_path), nprocs=nprocs, timeout=limit)
        assert isinstance(error, TimeoutError)
        if (tmp_path / "0").exists():
            break


# --- the start ---------------------------------------------------------------------------------

STUCK = """
import multiprocessing.util, os, signal, sys
import xmp

def stuck_here(_=None):
    while os.environ.get("RANK") == "1":
        signal.pause()

if __name__ == "__main__":
    multiprocessing.util.register_after_fork(stuck_here, stuck_here)
else:  # in a replica by fork that was run already, in one by exec it is now
    multiprocessing.util.register_after_fork(stuck_here, stuck_here)
    stuck_here()

if __name__ == "__main__":
    try:
        xmp.spawn(abs, nprocs=2, runtime="cpu", start_method=sys.argv[1],
                  start_timeout=float(sys.argv[2]))
    except xmp.ReplicaTimeout as error:
        print(error.rank, "stuck_here" in error.stacks[1], sorted(error.stacks))
        print(error)
"""


def test_a_replica_that_never_reaches_the_function(method: str, script: Script) -> None:
    for limit in LIMITS:
        done = script(STUCK, method, str(limit))
        if done.out.startswith("1 True "):
            break
    first, second, *_ = done.out.splitlines()
    assert first.startswith("1 True "), done
    assert second.startswith(f"start_timeout={limit}: rank 1 of 2 on "), done
    assert second.endswith(f" reached the function {limit} s after the call [XMP-T02]"), done


@pytest.mark.first_pass
def test_after_30_seconds_it_is_said_where_everybody_is(stage: Stage) -> None:
    """After 2 s here, which a supervisor by fork takes from its launcher."""
    sooner = "import xmp._rules.limits\nxmp._rules.limits.SAY_AFTER = 2_000_000_000\n"
    process = stage.start(f"{sooner}{STUCK}", "fork", "600")
    written, begin = Path(f"{process.script}.err"), "xmp: after 2 s "  # type: ignore[attr-defined]
    until(lambda: begin in (text := written.read_text()) and text.endswith("\n"), 60)
    process.kill()
    (said,) = [line for line in written.read_text().splitlines() if line.startswith(begin)]
    assert "1 of 2 replicas have not reached the function: rank 1: starting (File " in said
    assert said.endswith("in stuck_here)")
    stage.gone()


IMPORT = """
import signal, sys
import xmp

while __name__ != "__main__":
    signal.pause()

def fn(rank):
    return rank

if __name__ == "__main__":
    try:
        xmp.spawn(fn, nprocs=2, runtime="cpu", start_timeout=float(sys.argv[1]))
    except xmp.ReplicaTimeout as error:
        print(error)
"""


def test_a_script_whose_import_does_not_end(script: Script) -> None:
    for limit in LIMITS:
        done = script(IMPORT, str(limit))
        if "is being imported" in done.out:
            break
    said = f"start_timeout={limit}: {limit} s after the call no replica exists yet: "
    assert done.out.startswith(said), done
    assert done.out.endswith("train.py is being imported [XMP-T02]\n"), done


def loads_slowly(path: str) -> None:
    Path(path).touch()
    time.sleep(600)


class SlowToLoad:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return loads_slowly, (str(self.path),)


@pytest.mark.first_pass
def test_an_argument_that_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "loads"
    for limit in LIMITS:
        error = timeout("forkserver", lambda rank, _: rank, SlowToLoad(path), start_timeout=limit)
        if path.exists():
            break
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


def one_long_call_after_another(rank: int) -> None:
    for _ in range(5):
        time.sleep(0.4)  # waits for nothing: calls of this length are what is tested


def test_a_main_thread_that_is_seldom_in_python_does_not_hang(method: str) -> None:
    launch(method, one_long_call_after_another, hang_timeout=1)


def works_in_a_thread(rank: int, beats: bool) -> None:
    def work() -> None:
        for _ in range(20 if beats else 6000):  # twice the limit, and until it is ended
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
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass
        over.set()
    assert over.wait(20)


def test_one_replica_whose_interpreter_runs_is_enough(method: str) -> None:
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
