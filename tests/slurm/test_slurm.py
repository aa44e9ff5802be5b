"""``srun --ntasks-per-node=1 python train.py`` on two hosts of a real Slurm, 2 replicas on each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.network_job import PROGRAM
from tests.support.slurm import Slurm, slurm
from tests.support.stage import ROOT
from tests.support.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.netns, pytest.mark.root]

SRUN = ("srun", "--nodes=2", "--ntasks-per-node=1")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nothing_left_by_module: None
) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def launch(function: str, **do: Any) -> tuple[str, ...]:
    """The command of a job step."""
    options = {"grace": 1.0, **do.pop("options", {})}
    what = json.dumps({"function": function, "options": options, **do})
    return (*SRUN, sys.executable, PROGRAM, what)


def said(folder: Path, index: int) -> Any:
    return json.loads((folder / f"said-{index}").read_text())


def nothing_is_left(cluster: Slurm, seconds: float = 10) -> None:
    until(lambda: not cluster.left(), seconds, lambda: str(cluster.left()))


@pytest.mark.parametrize(("function", "runtime"), [("sums", "cpu"), ("mesh", "jax")])
def test_four_replicas_are_one_world(
    cluster: Slurm, tmp_path: Path, function: str, runtime: str
) -> None:
    done = cluster.run(*launch(function, runtime=runtime), folder=tmp_path)
    assert done.returncode == 0, done.stdout + cluster.logs()
    found = [said(tmp_path, index)["results"] for index in range(2)]
    # Each: its rank, the index of its host, the world's size, the sum of all ranks.
    assert found == [[[0, 0, 4, 6.0], [1, 0, 4, 6.0]], [[2, 1, 4, 6.0], [3, 1, 4, 6.0]]]
    nothing_is_left(cluster)


def test_both_hosts_name_the_replica_that_failed(cluster: Slurm, tmp_path: Path) -> None:
    done = cluster.run(*launch("waits", how="raise", victim=3), folder=tmp_path)
    assert done.returncode == 1, done.stdout
    for index in range(2):
        error = said(tmp_path, index)["error"]
        assert (error["type"], error["rank"], error["host"]) == ("ReplicaRaised", 3, "h1"), error
        assert "rank 3 of 4" in error["text"]
        assert 'raise ValueError("planned")' in error["traceback"]
    nothing_is_left(cluster)


def test_a_signal_before_the_end_of_a_job_is_a_preemption(cluster: Slurm, tmp_path: Path) -> None:
    """As ``--signal=TERM@120`` has it sent: all replicas leave their loop at the same step."""
    process = started(cluster, tmp_path, "saves")
    cluster.run("scancel", "--signal=TERM", job_of(cluster))
    process.communicate(timeout=30)
    steps = [(tmp_path / f"saved-{rank}").read_text() for rank in range(4)]
    assert len(set(steps)) == 1, steps
    nothing_is_left(cluster)


def job_of(cluster: Slurm) -> str:
    """The only job that there is."""
    [job] = cluster.run("squeue", "--noheader", "--format=%i").stdout.split()
    return job


def started(cluster: Slurm, folder: Path, function: str) -> subprocess.Popen[str]:
    """A step whose four replicas are in their function."""
    process = cluster.command(*launch(function), folder=folder)
    marks = [folder / f"in-fn-{rank}" for rank in range(4)]
    until(lambda: all(mark.exists() for mark in marks) or process.poll() is not None, 60)
    assert process.poll() is None, process.communicate()
    return process


@pytest.fixture
def waiting(cluster: Slurm, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A step whose four replicas wait for ever."""
    process = started(cluster, tmp_path, "waits")
    yield process
    process.communicate(timeout=60)


def test_scancel_ends_everything(cluster: Slurm, waiting: subprocess.Popen[str]) -> None:
    """Before Slurm kills: xmp ends all of it within the grace."""
    cluster.run("scancel", job_of(cluster))
    nothing_is_left(cluster, cluster.KILL_WAIT / 3)
    waiting.wait(10)
    assert waiting.returncode != 0


def test_sigterm_to_srun_ends_everything(cluster: Slurm, waiting: subprocess.Popen[str]) -> None:
    # It has forked a helper of the same name.
    srun = min(pid for pid, name in cluster.hosts[0].pids().items() if name == "srun")
    os.kill(srun, signal.SIGTERM)
    nothing_is_left(cluster, cluster.KILL_WAIT / 3)
    waiting.wait(10)
    assert waiting.returncode != 0


def test_the_batch_script_of_the_project_runs(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for GPUs and cores, which these nodes lack; options of the command line go first."""
    for name in ("train.sbatch", "train.py"):
        shutil.copy(ROOT / "scripts/clusters" / name, tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    fits = ("--gpus-per-node=0", "--cpus-per-task=2")
    done = cluster.run("sbatch", "--wait", *fits, "--output=out", "train.sbatch", folder=tmp_path)
    printed = (tmp_path / "out").read_text()
    assert done.returncode == 0, printed
    assert printed.count("2 replicas here, weight 2.50 after step 100\n") == 2, printed
    nothing_is_left(cluster)


FOR_EACH_TASK = """
import json, xmp

def train(rank):
    return [rank, xmp.host_index(), xmp.world_size(), float(xmp.all_reduce(float(rank)))]

if __name__ == "__main__":
    print(json.dumps(list(xmp.launch(train, runtime="cpu"))), flush=True)
"""


def test_a_task_for_each_replica(cluster: Slurm, tmp_path: Path) -> None:
    """Slurm has started the replicas itself: ``launch`` runs the function in each task.

    torch finds the others by MASTER_ADDR and MASTER_PORT, which a batch script sets.
    """
    (tmp_path / "train.py").write_text(FOR_EACH_TASK)
    meeting = "--export=ALL,MASTER_ADDR=h0,MASTER_PORT=29500"
    srun = ("srun", "--nodes=2", "--ntasks-per-node=2", meeting)
    done = cluster.run(*srun, sys.executable, "train.py", folder=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    found = sorted(json.loads(line)[0] for line in lines)
    assert found == [[rank, rank // 2, 4, 6.0] for rank in range(4)], done.stdout
    nothing_is_left(cluster)


def test_a_host_that_loses_power(tmp_path: Path) -> None:
    """The other is not waited for by anything that xmp has started."""
    (own := tmp_path / "cluster").mkdir()
    with ExitStack() as afterwards, slurm(own) as cluster:
        process = cluster.command(*launch("waits"), folder=tmp_path)
        afterwards.callback(process.communicate, timeout=20)
        until(lambda: all((tmp_path / f"in-fn-{rank}").exists() for rank in range(4)), 60)
        cluster.hosts[1].lose_power()
        until(lambda: (tmp_path / "said-0").exists(), 20)
        error = said(tmp_path, 0)["error"]
        assert error["type"] == "HostLost", error
        assert "host 1 (h1)" in error["text"]
