"""``engine="slurm"``: a program that runs once in an allocation, on two nodes of a real Slurm."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm import Slurm, slurm
from tests.support.stage import ROOT
from tests.support.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.netns, pytest.mark.root]

PROGRAM = """
    import os, sys, time
    import xmp

    def hosts(rank):
        return rank, os.uname().nodename, xmp.world_size(), os.environ.get("OF_THE_PROGRAM")

    def data(rank, word):
        return word * (1 << 22)

    def fails(rank):
        if rank == 3:
            raise ValueError("planned")
        waits(rank)

    def waits(rank):
        open(f"in-fn-{rank}", "w").close()
        time.sleep(1000)

    ON = dict(engine="slurm", nprocs=2, runtime="cpu", grace=1)
    if __name__ == "__main__":
        match sys.argv[1]:
            case "all":
                print(list(xmp.launch(hosts, **ON)))
                print([len(each) for each in xmp.launch(data, ("word",), **ON)])
                print([host for _, host, _, _ in xmp.launch(hosts, hosts=["h1"], **ON)])
            case other:
                xmp.launch(globals()[other], **ON)
"""


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nothing_left_by_module: None
) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OF_THE_PROGRAM", "yes")
    path = tmp_path / "program.py"
    path.write_text("\n".join(line[4:] for line in PROGRAM.splitlines()))
    return path


def nothing_is_left(cluster: Slurm, seconds: float = 20) -> None:
    until(lambda: not cluster.left(), seconds, lambda: str(cluster.left()))


def test_all_nodes_of_an_allocation(cluster: Slurm, program: Path) -> None:
    words = ("salloc", "--nodes=2", "--quiet", sys.executable, program.name, "all")
    done = cluster.run(*words, folder=program.parent, seconds=120)
    assert done.returncode == 0, done.stdout + cluster.logs()
    ranks = [(rank, f"h{rank // 2}", 4, "yes") for rank in range(4)]
    assert done.stdout.splitlines() == [str(ranks), str([1 << 24] * 4), "['h1', 'h1']"]
    nothing_is_left(cluster)


def test_the_program_of_the_page(cluster: Slurm, program: Path) -> None:
    page = (ROOT / "docs/guide/ssh.md").read_text()
    (source,) = re.findall(r"```python\n(# nodes\.py\n.*?)```", page, re.DOTALL)
    program.write_text(source)
    words = ("salloc", "--nodes=2", "--quiet", sys.executable, program.name)
    done = cluster.run(*words, folder=program.parent, seconds=120)
    assert (done.returncode, done.stdout) == (0, "[(0, 0), (0, 1), (1, 0), (1, 1)]\n"), done
    nothing_is_left(cluster)


def test_a_batch_script_that_is_the_program(cluster: Slurm, program: Path) -> None:
    script = program.with_suffix(".sbatch")
    script.write_text(f"#!/bin/sh\nexec {sys.executable} {program.name} all\n")
    words = ("sbatch", "--wait", "--nodes=2", "--output=out", script.name)
    done = cluster.run(*words, folder=program.parent, seconds=120)
    said = (program.parent / "out").read_text()
    assert done.returncode == 0, said
    assert said.splitlines()[-1] == "['h1', 'h1']"
    nothing_is_left(cluster)


def test_the_program_names_the_replica_that_failed(cluster: Slurm, program: Path) -> None:
    words = ("salloc", "--nodes=2", "--quiet", sys.executable, program.name, "fails")
    done = cluster.run(*words, folder=program.parent, seconds=120)
    assert done.returncode == 1, done.stdout
    assert "rank 3 of 4" in done.stdout
    assert 'raise ValueError("planned")' in done.stdout
    nothing_is_left(cluster)


@pytest.mark.parametrize("how", ["the program", "a step", "the job"])
def test_nothing_is_left_of(cluster: Slurm, program: Path, how: str) -> None:
    words = ("salloc", "--nodes=2", "--quiet", sys.executable, program.name, "waits")
    process = cluster.command(*words, folder=program.parent)
    marks = [program.parent / f"in-fn-{rank}" for rank in range(4)]
    until(lambda: all(mark.exists() for mark in marks) or process.poll() is not None, 120)
    assert process.poll() is None, process.communicate()
    if how == "the job":
        [job] = cluster.run("squeue", "--noheader", "--format=%i").stdout.split()
        cluster.run("scancel", job)
    else:
        named = cluster.hosts[0].pids()
        name = "srun" if how == "a step" else Path(sys.executable).name[:15]
        os.kill(min(pid for pid, each in named.items() if each == name), signal.SIGKILL)
    out, _ = process.communicate(timeout=90)
    assert how != "a step" or "HostLost" in out, out
    nothing_is_left(cluster)
