"""More replicas than a host can carry are refused by the limit that they would hit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import xmp
from tests.support.launching import nothing_started
from tests.support.stage import Script
from xmp._os.probe.resources import most_replicas, too_many
from xmp._plan import planner
from xmp._words.types import HostFacts, Request


def fn(rank: int) -> int:
    return rank


def test_a_million_replicas_are_refused_at_once_by_the_limit_of_the_host() -> None:
    for launch in (
        lambda: xmp.spawn(fn, nprocs=10**6, runtime="cpu"),
        lambda: xmp.start_processes(fn, nprocs=10**6),
    ):
        with nothing_started(), pytest.raises(xmp.PlanError, match=r"nprocs=1000000: .* at most"):
            launch()


def test_a_plan_of_a_million_replicas_is_refused() -> None:
    with pytest.raises(xmp.PlanError, match="nprocs=1000000 is too large"):
        planner.plan(Request(nprocs=10**6, runtime="cpu"), HostFacts(cpus=(0,)))
    doctor = [sys.executable, "-m", "xmp", "doctor", "-n", "1000000", "--runtime", "cpu"]
    said = subprocess.run(doctor, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 1
    assert "1000000 replicas do not fit: this host can carry at most" in said.stdout, said


PROGRAM = """
import sys, xmp

def fn(rank):
    return rank

if __name__ == "__main__":
    try:
        xmp.spawn(fn, nprocs=int(sys.argv[1]), runtime="cpu")
    except xmp.PlanError as error:
        print(error)
"""


def test_the_limit_of_open_files_is_named(script: Script) -> None:
    said = script(PROGRAM, "400", shell_before="ulimit -n 1024")
    assert "nprocs=400: this host can carry at most 240 replicas" in said.out, said
    assert "1024 open files" in said.out
    assert said.err == ""


def test_the_tightest_limit_of_a_recorded_host(tmp_path: Path) -> None:
    for name, text in {
        "proc/sys/kernel/pid_max": "4194304",
        "proc/sys/kernel/threads-max": "500",
        "proc/self/cgroup": "0::/job",
        "sys/fs/cgroup/job/pids.max": "300",
        "sys/fs/cgroup/job/pids.current": "100",
        "proc/meminfo": "MemAvailable: 400000 kB",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    most, limit = most_replicas(tmp_path)
    assert most == 200
    assert "pids.max), and 100 now" in limit
    assert too_many(200, tmp_path) == ""
    (tmp_path / "sys/fs/cgroup/job/pids.max").write_text("max")
    assert "MiB of memory" in most_replicas(tmp_path)[1]
