"""``Job``: the handle of a launch over hosts."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.in_script import never_returns
from tests.support.waiting import until

pytestmark = pytest.mark.hosts

TWO: dict[str, Any] = {
    "engine": "local", "hosts": 2, "nprocs": 2, "runtime": "cpu", "progress": False, "grace": 1,
}  # fmt: skip


def waits(rank: int, folder: Path) -> int:
    until((folder / "go").exists, 60)
    return rank


def test_a_job_that_goes_well(tmp_path: Path) -> None:
    job = xmp.launch(waits, (tmp_path,), join=False, **TWO)
    assert type(job) is xmp.Job
    assert [(each.index, each.name, each.address) for each in job.hosts] == [
        (0, "127.0.0.2", "127.0.0.2"),
        (1, "127.0.0.3", "127.0.0.3"),
    ]
    names = [Path(f"/proc/{host.pid}/comm").read_text() for host in job.hosts]
    assert names == ["xmp-agent\n"] * 2
    assert len(set(job.pids())) == 4
    assert [host.address for host in job.plan.hosts] == ["127.0.0.2", "127.0.0.3"]
    assert repr(job).startswith("<Job of waits, 4 replicas, runtime cpu; running: rank 0 (pid")
    assert job.join(timeout=0.1) is False
    stacks = job.stacks()
    assert [*stacks] == [0, 1, 2, 3]
    assert all("in waits" in text for text in stacks.values())
    (tmp_path / "go").touch()
    assert list(job.results()) == [0, 1, 2, 3]
    assert job.join() is True
    assert job.stacks() == {}


def test_a_job_cannot_be_copied(tmp_path: Path) -> None:
    with xmp.launch(waits, (tmp_path,), join=False, **TWO) as job:
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            copy.copy(job)
    # The end of the block has ended the replicas.
    with pytest.raises(xmp.ReplicaDied, match=r"was ended by xmp .*terminate\(\) was called"):
        job.join()


def test_the_plan_of_a_job_has_the_ports_that_its_hosts_have_found() -> None:
    def port(_: int) -> str:
        return os.environ["MASTER_PORT"]

    job = xmp.launch(port, join=False, **TWO)
    found = {*job.results()}
    planned = {dict(each.set)["MASTER_PORT"] for host in job.plan.hosts for each in host.replicas}
    assert planned == found
    assert f"port {int(*found) + 1000}" in str(job.plan)


def test_two_jobs_at_once(tmp_path: Path) -> None:
    jobs = [xmp.launch(waits, (tmp_path,), join=False, **TWO) for _ in range(2)]
    assert not {*jobs[0].pids()} & {*jobs[1].pids()}
    (tmp_path / "go").touch()
    assert [list(job.results()) for job in jobs] == [[0, 1, 2, 3]] * 2


def fails(rank: int) -> None:
    if rank == 3:
        raise ValueError("no such label")
    never_returns()


def test_a_job_that_fails_says_so_at_each_join() -> None:
    job = xmp.launch(fails, join=False, **TWO)
    for ask in (job.join, job.results, job.join):
        with pytest.raises(xmp.ReplicaRaised, match="rank 3 of 4"):
            ask()


def ends_slowly(rank: int, folder: Path) -> None:
    if rank == 0:
        raise ValueError("no such label")
    until((folder / "go").exists, 60)
    (folder / f"done-{rank}").touch()


def test_a_grace_period_lets_the_other_hosts_end_by_themselves(tmp_path: Path) -> None:
    job = xmp.launch(waits_then_fails, (tmp_path,), join=False, **TWO)
    assert job.join(timeout=0, grace_period=20) is False
    (tmp_path / "go").touch()
    with pytest.raises(xmp.ReplicaRaised, match="rank 0 of 4"):
        job.join()


def waits_then_fails(rank: int, folder: Path) -> int:
    until((folder / "go").exists, 60)
    if rank == 0:
        raise ValueError("no such label")
    return rank
