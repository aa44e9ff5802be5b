"""join=False, threads, forked launchers, launches within launches."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

import xmp
from tests.support.launching import launch, never_returns
from tests.support.stage import Script
from tests.support.waiting import until
from xmp._processes.launcher.launch import Launch

each_method = pytest.mark.each_method
"""Of tests without it every start method has the same code to run."""


def waits(rank: int, go: Any) -> int:
    assert go.wait(30)
    return rank * 10


def event() -> Any:
    """Not a fixture: pytest would keep its semaphores too long."""
    return multiprocessing.get_context("spawn").Event()


@each_method
def test_a_context(method: str) -> None:
    go = event()
    context = launch(method, waits, go, join=False)
    assert isinstance(context, xmp.ProcessContext)
    assert context.join(timeout=0.05) is False
    assert context.join(timeout=0) is False
    pids = context.pids()
    assert len(set(pids)) == 2
    assert all(psutil.pid_exists(pid) for pid in pids)
    assert len(context.processes) == 2
    assert [process.pid for process in context.processes] == pids
    go.set()
    assert context.join(timeout=30) is True
    assert context.join() is True
    assert list(context.results()) == [0, 10]
    assert list(context.results()) == [0, 10]
    assert context.pids() == pids
    assert all(not psutil.pid_exists(pid) for pid in pids)


def test_the_plan_of_a_context(method: str) -> None:
    context = launch(method, waits_not, join=False)
    assert context.plan.runtime == "cpu"
    assert context.plan.world_size == 2
    assert context.join() is True


def waits_not(rank: int) -> int:
    return rank


def test_start_processes_has_torchs_contract(method: str) -> None:
    go = event()
    context = xmp.start_processes(waits, (go,), 2, join=False, start_method=method)
    assert context is not None
    assert context.join(timeout=0) is False
    go.set()
    assert context.join() is True
    assert xmp.start_processes(waits_not, nprocs=2, start_method=method) is None
    with pytest.raises(xmp.ReplicaRaised, match="Process 1 terminated with the following error"):
        xmp.start_processes(fails, nprocs=2, start_method=method)


def fails(rank: int) -> None:
    if rank == 1:
        raise ValueError("from a context")
    never_returns()


def test_join_raises_when_a_replica_failed(method: str) -> None:
    context = launch(method, fails, join=False)
    with pytest.raises(xmp.ReplicaRaised, match="from a context"):
        until(lambda: context.join(timeout=0.05), 20)
    with pytest.raises(xmp.ReplicaRaised, match="from a context"):
        context.results()
    assert not any(psutil.pid_exists(pid) for pid in context.pids())


def inside_here(rank: int, go: Any, ready: Any) -> None:
    ready.release()
    go.wait(30)


@each_method
def test_stacks_of_a_running_launch(method: str) -> None:
    go = event()
    ready = multiprocessing.get_context("spawn").Semaphore(0)
    context = launch(method, inside_here, go, ready, join=False)
    assert ready.acquire(timeout=20)
    assert ready.acquire(timeout=20)
    stacks = context.stacks()
    assert set(stacks) == {0, 1}
    assert all("inside_here" in text for text in stacks.values())
    go.set()
    assert context.join() is True
    assert context.stacks() == {}


@each_method
def test_terminate(method: str) -> None:
    go = event()
    context = launch(method, waits, go, join=False, grace=600)
    pids = context.pids()
    context.terminate()  # waits neither for the grace nor until they return
    assert not any(psutil.pid_exists(pid) for pid in pids)
    context.terminate()


def test_terminate_after_the_end(method: str) -> None:
    context = launch(method, waits_not, join=False)
    assert context.join() is True
    context.terminate()
    assert list(context.results()) == [0, 1]


def test_leaving_the_with_block_ends_what_still_runs(method: str) -> None:
    go = event()
    with launch(method, waits, go, join=False) as context:
        pids = context.pids()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    context = launch(method, waits, go, join=False)
    with pytest.raises(KeyError), context:
        {}[0]
    pids = context.pids()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@each_method
def test_several_launches_at_once(method: str) -> None:
    go = event()
    contexts = [launch(method, waits, go, join=False) for _ in range(3)]
    assert list(launch(method, waits_not)) == [0, 1]
    assert not any(context.join(timeout=0) for context in contexts)
    go.set()
    assert [list(context.results()) for context in contexts] == [[0, 10]] * 3


def test_the_grace_period_of_join(method: str, tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"

    def fn(rank: int) -> None:
        if rank == 1:
            until(deaf.exists)
            raise ValueError
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deaf.touch()
        never_returns()

    context = launch(method, fn, join=False, grace=600)
    with pytest.raises(xmp.ReplicaRaised) as caught:
        context.join(grace_period=0.2)
    assert caught.value.failures[1].signal_name == "SIGKILL"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """terminate() gives a supervisor 0.5 s beside the grace, and not 5 s."""
    whole = Launch.end_within
    monkeypatch.setattr(Launch, "end_within", lambda self, seconds: whole(self, seconds - 4.5))


def test_terminate_waits_for_the_grace_period(impatient: None, tmp_path: Path) -> None:
    deaf, go, saved = (tmp_path / name for name in ("deaf", "go", "saved"))

    def fn(rank: int) -> None:
        signal.signal(signal.SIGTERM, lambda *_: deaf.touch())
        (tmp_path / f"ready{rank}").touch()
        until(deaf.exists)
        until(go.exists, 30)
        saved.touch()

    context = launch("forkserver", fn, nprocs=1, join=False, grace=0.5)
    until((tmp_path / "ready0").exists)
    assert context.join(timeout=0, grace_period=30) is False
    thread = threading.Thread(target=context.terminate)
    thread.start()
    until(deaf.exists)
    thread.join(2)  # longer than a supervisor has that was given no grace
    assert thread.is_alive()
    go.touch()
    thread.join(20)
    assert saved.exists()


@pytest.mark.parametrize("grace", ["x", True, -1, float("inf"), float("nan")])
def test_a_grace_period_that_is_none_is_refused(grace: Any) -> None:
    context = launch("forkserver", waits_not, join=False)
    with pytest.raises((TypeError, ValueError), match="grace_period"):
        context.join(grace_period=grace)
    assert list(context.results()) == [0, 1]


def test_the_timeout_of_join_is_a_number_or_refused() -> None:
    context = launch("forkserver", waits_not, join=False)
    for wrong in ("5", True, float("nan")):
        with pytest.raises((TypeError, ValueError), match="timeout"):
            context.join(timeout=wrong)
    assert context.join(timeout=float("inf"))


def test_a_supervisor_ended_by_a_signal_without_a_name_is_reported() -> None:
    context = launch("forkserver", never_returns_here, join=False)
    supervisor = psutil.Process(context.pids()[0]).ppid()
    os.kill(supervisor, signal.SIGRTMIN + 1)
    with pytest.raises(xmp.StartError, match=r"ended early: killed by SIGRTMIN\+1"):
        context.join()


def test_a_supervisor_that_does_not_answer_is_killed_where_nothing_can_be_said(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = launch("forkserver", never_returns_here, join=False, grace=0)
    os.kill(psutil.Process(context.pids()[0]).ppid(), signal.SIGSTOP)
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    context.terminate()
    monkeypatch.undo()
    with pytest.raises(xmp.StartError, match="SIGKILL"):
        context.join()


def never_returns_here(rank: int) -> None:
    never_returns()


# --- threads -----------------------------------------------------------------------------------


@each_method
def test_launches_from_two_threads_at_once(method: str) -> None:
    got: dict[int, Any] = {}

    def start(index: int) -> None:
        got[index] = [list(launch(method, lambda rank, i: (i, rank), index)) for _ in range(2)]

    threads = [threading.Thread(target=start, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == {index: [[(index, 0), (index, 1)]] * 2 for index in range(2)}


@each_method
def test_a_launch_outlives_the_thread_that_started_it(method: str) -> None:
    """A parent-death signal would end it with the thread."""
    go = event()
    contexts: list[Any] = []
    thread = threading.Thread(target=lambda: contexts.append(launch(method, waits, go, join=False)))
    thread.start()
    thread.join(30)
    assert contexts[0].join(timeout=0.3) is False
    go.set()
    assert list(contexts[0].results()) == [0, 10]


# --- processes ---------------------------------------------------------------------------------

FORKED = """
import multiprocessing, sys
import xmp

def fn(rank, who):
    return who, rank

def spawns(who, times, queue=None):
    got = [list(xmp.spawn(fn, (who,), nprocs=2, runtime="cpu", start_method=sys.argv[1]))
           for _ in range(times)]
    assert got == [[(who, 0), (who, 1)]] * times, got
    if queue:
        queue.put(who)

if __name__ == "__main__":
    spawns("parent", 1)  # there is a template
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=spawns, args=(f"child {i}", 2, queue)) for i in range(2)]
    for child in children:
        child.start()
    spawns("parent", 3)
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0], children
    spawns("parent", 1)
    print(sorted([queue.get(), queue.get()]))
"""


@each_method
def test_forked_children_of_the_launcher_launch_at_the_same_time(
    method: str, script: Script
) -> None:
    done = script(FORKED, method, timeout=40)
    assert done.out == "['child 0', 'child 1']\n", done


@each_method
def test_a_running_launch_survives_the_end_of_a_forked_child(method: str) -> None:
    """The child has copies of our descriptors and objects; its end must not end our launch."""
    go = event()
    context = launch(method, waits, go, join=False)
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    assert child.exitcode == 0
    pid = os.fork()
    if pid == 0:
        del context
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert context.join(timeout=0.2) is False
    go.set()
    assert list(context.results()) == [0, 10]


def inner(rank: int, outer: int) -> Any:
    return outer, rank, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], xmp.rank()


def outer(rank: int, method: str) -> Any:
    before = dict(os.environ)
    got = list(launch(method, inner, rank, nprocs=2 + rank))
    assert dict(os.environ) == before
    return got, xmp.rank()


@each_method
@pytest.mark.parametrize("within", ["same", "other"])
def test_a_launch_within_a_replica(method: str, within: str) -> None:
    other = {"forkserver": "spawn", "spawn": "fork", "fork": "forkserver"}
    start = method if within == "same" else other[method]
    for rank, (got, own) in enumerate(launch(method, outer, start)):
        assert own == rank
        count = 2 + rank
        assert got == [(rank, r, str(r), str(count), r) for r in range(count)]
