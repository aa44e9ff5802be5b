"""Two hosts with names and addresses of their own, 2 replicas on each, placed by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from tests.support.namespaces import network
from tests.support.network_job import GRACE, job_on_network
from tests.support.stage import Stage, slowness
from tests.support.waiting import until

pytestmark = [pytest.mark.hosts, pytest.mark.netns, pytest.mark.root]

REPLICA, LAUNCHER, SILENCE = 1.0, 2.0, 15.0
"""Seconds from a fault to the error on every host; a grace is added to the first two."""
RAISED = "raised ValueError: planned"


def in_time(error: dict[str, Any], fault: int, limit: float) -> None:
    took = (error["at"] - fault) / 1e9
    assert took < limit or took < limit * slowness(), f"after {took:.2f} s: {error['text']}"


def test_four_replicas_are_one_world(tmp_path: Path) -> None:
    with job_on_network(tmp_path, function="mesh", runtime="jax") as job:
        job.start()
        found = [job.said(index)["results"] for index in range(2)]
        # Each: its rank, the index of its host, the world's size, the sum of all ranks.
        assert found == [[[0, 0, 4, 6.0], [1, 0, 4, 6.0]], [[2, 1, 4, 6.0], [3, 1, 4, 6.0]]]
        assert not job.left()


def test_host_0_is_the_one_with_the_address(tmp_path: Path) -> None:
    """Although the other came first: the same command on both, as in torch's tutorial."""
    stage = Stage(tmp_path)
    stage.write("import os\nprint(os.environ['RANK'], flush=True)\n", "train.py")
    words = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=h0:29500")
    command = (sys.executable, "-m", "xmp", "run", *words, "--runtime=cpu", "train.py")
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with network(tmp_path) as hosts:
        try:
            second = stage.start_command(*hosts[1].command(*command, folder=tmp_path), **pipes)
            names = hosts[1].pids
            until(lambda: "xmp-carrier" in names().values(), 30, "it asks for its index")
            first = stage.start_command(*hosts[0].command(*command, folder=tmp_path), **pipes)
            said = [stage.outcome(each, 60) for each in (first, second)]
        finally:
            stage.end()
    assert [(each.code, each.out) for each in said] == [(0, "0\n"), (0, "1\n")], said


def test_both_hosts_name_the_replica_that_failed(tmp_path: Path) -> None:
    """One that died: ``test_both_name_the_replica_that_died``, without namespaces."""
    with job_on_network(tmp_path, function="waits", how="raise", victim=0) as job:
        job.start()
        for error in job.errors():
            assert (error["type"], error["rank"], error["host"]) == ("ReplicaRaised", 0, "h0")
            assert "rank 0 of 4" in error["text"]
            assert "on host 0 (h0))" in error["text"]
            assert RAISED in error["text"]
            assert 'raise ValueError("planned")' in error["traceback"]
            in_time(error, job.fault(), REPLICA + GRACE)
        assert not job.left()


def test_both_hosts_name_the_replica_that_raised_amid_all_reduces(tmp_path: Path) -> None:
    """Whose sums were right until then."""
    with job_on_network(tmp_path, function="sums", how="raise", victim=3, step=20) as job:
        job.start()
        for error in job.errors():
            assert (error["type"], error["rank"]) == ("ReplicaRaised", 3), error["text"]
            assert RAISED in error["text"]
            in_time(error, job.fault(), REPLICA + GRACE)
        assert not job.left()


# Launcher and supervisor: tests/launcher/test_placed_hosts.py.
@pytest.mark.parametrize("index", [0, 1])
def test_a_carrier_process_is_killed(tmp_path: Path, index: int) -> None:
    with job_on_network(tmp_path, function="waits") as job:
        job.start()
        job.in_function()
        fault = time.monotonic_ns()
        job.kill(index, "carrier")
        [error] = job.errors(1 - index)
        assert error["type"] == "HostLost", error["text"]
        assert f"host {index}" in error["text"]
        in_time(error, fault, LAUNCHER + GRACE)
        [own] = job.errors(index)
        assert own["type"] in ("HostLost", "StartError"), own["text"]
        in_time(own, fault, LAUNCHER + GRACE)
        assert not job.left()


# --- silence: all at the same time, since a test is little more than waiting ---

CASES = [("cut", 2, 0), ("unplug", 2, 0), ("unplug", 2, 1), ("lose_power", 2, 0), ("cut", 3, 2)]
"""How a host is lost, of how many, and which. What the others see is the same in all three ways."""
Case = tuple[str, int, int]


def silenced(folder: Path, case: Case) -> tuple[int, dict[int, dict[str, Any]], Any]:
    """When the host was lost, the error of each host that still is, and what is left."""
    way, hosts, index = case
    folder.mkdir()
    with job_on_network(folder, hosts, function="waits") as job:
        job.start()
        job.in_function()
        fault = time.monotonic_ns()
        getattr(job.hosts[index], way)()
        speak = [host for host in range(hosts) if host != index or way != "lose_power"]
        return fault, dict(zip(speak, job.errors(*speak))), job.left()


def cut_for_seven_seconds(folder: Path) -> tuple[list[dict[str, Any]], Any]:
    """The errors of a replica that raises afterwards, and what is left."""
    folder.mkdir()
    with job_on_network(folder, function="waits", how="raise", victim=3, after_go=True) as job:
        job.start()
        job.in_function()
        job.hosts[1].cut()
        time.sleep(7)  # the length of the cut is what is tested
        job.hosts[1].plug()
        time.sleep(5)  # a host that had lost the other would have ended by now
        (folder / "go").touch()
        return job.errors(), job.left()


def stood_still(folder: Path) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """The errors of host 0, which stood still, and of the other, and what is left."""
    folder.mkdir()
    with job_on_network(folder, function="waits") as job:
        job.start()
        job.in_function()
        carrier = job.find(0, "carrier")
        frozen = [pid for pid in job.hosts[0].pids() if pid != carrier]
        for pid in (carrier, *frozen):
            os.kill(pid, signal.SIGSTOP)
        [other] = job.errors(1)
        for pid in (carrier, *reversed(frozen)):
            os.kill(pid, signal.SIGCONT)
        job.resume(0)
        [own] = job.errors(0)
        return own, other, job.left()


@pytest.fixture(scope="module")
def silences(
    tmp_path_factory: pytest.TempPathFactory, nothing_left_by_module: None
) -> Iterator[dict[Any, Future[Any]]]:
    folder = tmp_path_factory.mktemp("silences")
    with ThreadPoolExecutor(len(CASES) + 2) as pool:
        found: dict[Any, Future[Any]] = {
            case: pool.submit(silenced, folder / str(number), case)
            for number, case in enumerate(CASES)
        }
        for act in (cut_for_seven_seconds, stood_still):
            found[act] = pool.submit(act, folder / act.__name__)
        wait(found.values())  # what looks after each test for processes would reap those of these
        yield found


def test_a_cut_of_seven_seconds_ends_nothing(silences: dict[Any, Future[Any]]) -> None:
    """TCP has waited longer and longer by then, and has to come again before the limit."""
    errors, left = silences[cut_for_seven_seconds].result()
    assert len(errors) == 2
    for error in errors:
        assert (error["type"], error["rank"]) == ("ReplicaRaised", 3), error["text"]
    assert not left


def test_a_host_0_that_stood_still_is_the_one_that_both_name(
    silences: dict[Any, Future[Any]],
) -> None:
    own, other, left = silences[stood_still].result()
    for error in (own, other):
        assert error["type"] == "HostLost", error["text"]
        assert "host 0 (h0) " in error["text"] or "host 0 (h0)," in error["text"], error["text"]
    assert "stood still for" in own["text"]
    assert not left


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}-of-{case[1]}")
def test_a_host_that_is_silent_is_lost(silences: dict[Any, Future[Any]], case: Case) -> None:
    """Every other host names it; the isolated host ends its own replicas, too."""
    fault, errors, left = silences[case].result()
    for host, error in errors.items():
        assert error["type"] == "HostLost", error["text"]
        assert host == case[2] or f"host {case[2]}" in error["text"]
        in_time(error, fault, SILENCE)
    assert not left
