"""``context.processes`` answers for the moment, also where no thread waits for the launch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

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
    began = time.monotonic()
    killed.join(20)
    assert not killed.is_alive()
    assert killed.exitcode == -signal.SIGKILL
    assert time.monotonic() - began < 10
    with pytest.raises(xmp.ReplicaDied):
        context.join()


def test_join_of_one_replica_waits_no_longer_than_its_timeout() -> None:
    context = launch("forkserver", waits, join=False)
    began = time.monotonic()
    context.processes[0].join(0.3)
    assert 0.25 < time.monotonic() - began < 5
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
    began = time.monotonic()
    until(lambda: not replica.is_alive(), 20)
    assert [replica.is_alive() for _ in range(20)] == [False] * 20
    assert replica.exitcode is None, "the kernel says to the parent alone how it ended"
    assert time.monotonic() - began < 10
    os.kill(supervisor, signal.SIGCONT)
    with pytest.raises(xmp.ReplicaDied):
        context.join()
    assert replica.exitcode == -signal.SIGKILL
