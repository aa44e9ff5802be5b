"""``context.processes`` answers for the moment, also where no thread waits for the launch."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import launch, never_returns
from tests.support.waiting import until

pytestmark = pytest.mark.failing


def ends_as_told(rank: int, folder: Path) -> None:
    (folder / f"there{rank}").touch()
    until((folder / f"go{rank}").exists, 30)
    if rank == 1:
        os._exit(7)


def waits(rank: int) -> None:
    never_returns()


def stands_until(rank: int, go: Any) -> None:
    go.wait(60)


def test_a_replica_that_has_ended_is_not_alive(method: str, tmp_path: Path) -> None:
    context = launch(method, ends_as_told, tmp_path, nprocs=3, join=False)
    first, second, third = context.processes
    assert [process.exitcode for process in context.processes] == [None] * 3
    assert all(process.is_alive() for process in context.processes)
    (tmp_path / "go0").touch()
    until(lambda: not first.is_alive(), 20)
    assert first.exitcode == 0
    assert third.exitcode is None
    (tmp_path / "go1").touch()
    until(lambda: not second.is_alive(), 20)
    assert second.exitcode == 7
    until(lambda: not third.is_alive(), 20)  # the supervisor ends it
    assert third.exitcode == -signal.SIGTERM
    with pytest.raises(xmp.ReplicaDied, match="rank 1"):
        context.join()


def test_a_replica_that_was_killed_is_not_alive() -> None:
    context = launch("forkserver", waits, join=False)
    killed = context.processes[0]
    os.kill(killed.pid, signal.SIGKILL)
    killed.join(600)
    assert not killed.is_alive()
    assert killed.exitcode == -signal.SIGKILL
    with pytest.raises(xmp.ReplicaDied):
        context.join()


def test_join_of_one_replica_waits_no_longer_than_its_timeout() -> None:
    context = launch("forkserver", waits, join=False)
    began = time.monotonic()
    context.processes[0].join(0.3)
    assert time.monotonic() - began > 0.25
    assert context.processes[0].is_alive()
    context.terminate()
    context.processes[0].join()
    assert context.processes[0].exitcode == -signal.SIGTERM


def test_replicas_whose_supervisor_was_killed_are_not_alive() -> None:
    context = launch("forkserver", waits, join=False)
    with open(f"/proc/{context.pids()[0]}/stat") as file:
        supervisor = int(file.read().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    for process in context.processes:
        until(lambda process=process: not process.is_alive(), 20)
        assert process.exitcode == -signal.SIGKILL
    with pytest.raises(xmp.StartError, match="supervisor"):
        context.join()


def test_a_stopped_supervisor_holds_up_no_answer() -> None:
    context = launch("forkserver", waits, join=False)
    replica = context.processes[0]
    with open(f"/proc/{replica.pid}/stat") as file:
        supervisor = int(file.read().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(replica.pid, signal.SIGKILL)
    until(lambda: not replica.is_alive(), 20)
    assert [replica.is_alive() for _ in range(20)] == [False] * 20
    assert replica.exitcode is None, "the kernel says to the parent alone how it ended"
    os.kill(supervisor, signal.SIGCONT)
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    assert replica.exitcode == -signal.SIGKILL


# --- what a multiprocessing.Process has -----------------------------------------------------------


def test_it_has_what_a_started_process_of_multiprocessing_has() -> None:
    Process = multiprocessing.get_context("spawn").Process  # noqa: N806
    has = {name for name in dir(Process) if not name.startswith("_")}
    with launch("forkserver", waits, join=False, daemon=True) as context:
        process = context.processes[0]
        # Its own process calls these two, or reads it.
        assert has - {"start", "run", "authkey"} <= set(dir(process))
        assert process.ident == process.pid == context.pids()[0]
        assert process.daemon is True
        assert process.name == "Replica-0"
    with launch("forkserver", waits, join=False) as context:
        assert context.processes[0].daemon is False


@pytest.mark.parametrize(
    ("how", "number"), [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)]
)
def test_one_replica_can_be_ended(method: str, how: str, number: signal.Signals) -> None:
    context = launch(method, waits, join=False)
    ended = context.processes[1]
    getattr(ended, how)()
    ended.join(20)
    assert ended.exitcode == -number
    with pytest.raises(xmp.ReplicaDied) as caught:
        context.join()
    assert caught.value.rank == 1
    text = str(caught.value)
    assert f" was killed by {number.name} ({how}() was called on it) [XMP-R06]\n" in text
    assert text.endswith(f"\n\nprocess 1 terminated with signal {number.name}")
    assert "So a process sent the signal" not in text
    getattr(ended, how)()  # one that has ended gets no signal
    assert ended.exitcode == -number


def all_become_ready(sentinels: Iterable[int]) -> None:
    waiting = set(sentinels)
    while waiting:
        ready = multiprocessing.connection.wait(waiting, timeout=20)
        assert ready, "one did not become ready"
        waiting.difference_update(ready)


def test_a_sentinel_is_ready_when_its_replica_has_ended(method: str, tmp_path: Path) -> None:
    context = launch(method, ends_as_told, tmp_path, nprocs=3, join=False)
    assert sorted(context.sentinels.values()) == [0, 1, 2]
    assert context.sentinels == {p.sentinel: p.rank for p in context.processes}
    assert multiprocessing.connection.wait(context.sentinels, timeout=0) == []
    (tmp_path / "go2").touch()
    (ready,) = multiprocessing.connection.wait(context.sentinels, timeout=20)
    assert context.sentinels[ready] == 2, "it stays until a join has noted the end"
    assert context.processes[2].exitcode == 0
    assert context.join(timeout=0) is False
    assert sorted(context.sentinels.values()) == [0, 1]
    (tmp_path / "go0").touch()
    (tmp_path / "go1").touch()
    with pytest.raises(xmp.ReplicaDied, match="rank 1"):
        context.join()
    assert context.sentinels == {}
    all_become_ready(process.sentinel for process in context.processes)


def test_a_sentinel_that_is_asked_for_after_the_end_is_ready() -> None:
    context = launch("forkserver", abs, join=False)
    assert context.join()
    all_become_ready(process.sentinel for process in context.processes)


def test_the_sentinels_of_a_lost_launch() -> None:
    context = launch("forkserver", waits, join=False)
    sentinels = list(context.sentinels)
    with open(f"/proc/{context.pids()[0]}/stat") as file:
        supervisor = int(file.read().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    all_become_ready(sentinels)
    with pytest.raises(xmp.StartError, match="supervisor"):
        context.join()
    assert context.sentinels == {}


def test_a_process_can_be_closed_once_it_has_ended() -> None:
    go = multiprocessing.get_context("spawn").Event()
    context = launch("forkserver", stands_until, go, join=False)
    first, second = context.processes
    sentinel = first.sentinel
    with pytest.raises(ValueError, match=r"rank 0, pid \d+.* cannot be closed while it runs"):
        first.close()
    go.set()
    first.join(20)
    first.close()
    first.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(sentinel)
    for name in ("exitcode", "sentinel"):
        with pytest.raises(ValueError, match="closed"):
            getattr(first, name)
    for name in ("is_alive", "join", "terminate", "kill"):
        with pytest.raises(ValueError, match="closed"):
            getattr(first, name)()
    assert (first.name, first.pid, first.ident) == ("Replica-0", first.pid, first.pid)
    assert 0 not in context.sentinels.values()
    assert context.join() is True
    assert list(context.results()) == [None, None]
    second.close()


def interrupted(rank: int) -> None:
    if rank == 0:
        raise KeyboardInterrupt
    never_returns()


def test_a_replica_that_raises_keyboard_interrupt() -> None:
    with pytest.raises(xmp.ReplicaDied) as caught:
        launch("forkserver", interrupted)
    assert " was interrupted (KeyboardInterrupt)" in str(caught.value)
    assert "exit code None" not in str(caught.value)
    assert "\n    raise KeyboardInterrupt\n" in str(caught.value)
