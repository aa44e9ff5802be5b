"""``error.save(path)`` and the file that `xmp run` writes into ``--log-dir``."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import xmp
from tests.support.launching import failure, never_returns
from tests.support.lazily import lazily

pytestmark = pytest.mark.failing

torch = lazily("torch")
SECRET = "hf_" + "a" * 24


def raises(rank: int) -> None:
    print(f"I am rank {rank}", flush=True)
    if rank == 1:
        batch = [3, 4]
        raise ValueError(f"refused: {SECRET}, {os.environ.get('API_KEY')}, {sum(batch)}")
    never_returns()


def saved(error: xmp.XmpError, path: Path) -> str:
    error.save(path)
    return path.read_text()


def test_a_failed_replica(tmp_path: Path) -> None:
    error = failure("forkserver", raises, env={"API_KEY": "s3cr3t"}, show="none")
    text = saved(error, tmp_path / "report.txt")
    for part in (
        f"xmp {xmp.__version__}, Python ",
        "ReplicaRaised: rank 1 of 2",
        "\nVariables of rank 1, innermost frame first\n",
        "  batch = [3, 4]\n",
        "\nRank 1, pid ",
        "Last lines on standard output:\nI am rank 1",
        "\nPython stacks of rank",
        "in never_returns\n",
        "\nPlan\n====\nruntime   cpu",
        "API_KEY=(hidden)",
        "\nFacts of this host, now\n",
    ):
        assert part in text, part
    assert SECRET not in text
    assert "s3cr3t" not in text
    assert saved(pickle.loads(pickle.dumps(error)), tmp_path / "copy.txt").count("\n") > 30
    assert stat.S_IMODE((tmp_path / "report.txt").stat().st_mode) == 0o600


def stays_away(rank: int) -> None:
    xmp.barrier()
    if rank == 1:
        never_returns()
    xmp.barrier()


@pytest.mark.framework
def test_where_each_rank_was(tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("an older one")
    with pytest.raises(xmp.ReplicaTimeout) as caught:
        xmp.spawn(stays_away, nprocs=2, runtime="cpu", hang_timeout=2)
    text = saved(caught.value, tmp_path / "report.txt")
    assert "an older one" not in text
    _, _, places = text.partition("\nWhere each rank was\n===================\n")
    first, second, *_ = places.splitlines()
    assert first.startswith("rank 0: ")
    assert "in its collective 2, barrier() at " in first
    assert "has left its collective 1, barrier() at " in second


def test_every_attempt(tmp_path: Path) -> None:
    with pytest.raises(xmp.ReplicaRaised) as caught:
        xmp.spawn(raises, nprocs=2, runtime="cpu", max_restarts=1)
    text = saved(caught.value, tmp_path / "report.txt")
    assert text.count("An earlier attempt (max_restarts=)") == 1


def test_an_error_of_a_bad_request(tmp_path: Path) -> None:
    with pytest.raises(xmp.PlanError) as caught:
        xmp.spawn(raises, nprocs=2, runtime="toaster")
    assert "PlanError: runtime" in saved(caught.value, tmp_path / "report.txt")


def test_a_descriptor_is_no_path() -> None:
    with pytest.raises(TypeError, match="path must be the path of a file, not int"):
        xmp.XmpError("failed").save(1)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        xmp.XmpError("failed").save(tmp_path / "missing" / "report.txt")


def raises_after_two(rank: int) -> None:
    import torch.distributed as dist

    xmp.init_process_group()
    dist.all_reduce(xmp.all_reduce(torch.ones(3)))
    if rank == 1:
        raise ValueError("no")
    dist.barrier()


@pytest.mark.framework
def test_torchs_record_of_its_collectives(tmp_path: Path) -> None:
    """Beside the log files, and named in the error."""
    error = failure("forkserver", raises_after_two, log_dir=tmp_path)
    path = tmp_path / "rank1.collectives.json"
    assert f"\n\nIts last collectives: {path}\n\n" in str(error)
    entries = json.loads(path.read_text())["entries"]
    assert [each["profiling_name"] for each in entries] == ["gloo:all_reduce"] * 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    xmp.spawn(abs, nprocs=2, runtime="cpu", log_dir=tmp_path)
    assert not path.exists(), "it was an earlier launch's"


def run(script: Path, logs: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xmp", "run", "--runtime", "cpu", "--nproc-per-node", "2"]
    command += ["--log-dir", str(logs), str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_beside_the_log_files(tmp_path: Path) -> None:
    script, logs = tmp_path / "script.py", tmp_path / "logs"
    report = logs / f"error.{os.uname().nodename}.txt"
    script.write_text("import sys\nsys.exit(3)\n")
    done = run(script, logs)
    assert done.returncode == 3
    assert done.stderr.endswith(f"xmp: all that is known about it is in {report}\n")
    assert "ReplicaDied: rank" in report.read_text()
    script.write_text("")
    assert run(script, logs).returncode == 0
    assert not report.exists(), "it was an earlier launch's"


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Another user who can write to the folder may have put it there meanwhile."""
    script, logs, other = tmp_path / "script.py", tmp_path / "logs", tmp_path / "other"
    report = logs / f"error.{os.uname().nodename}.txt"
    other.write_text("precious")
    script.write_text(
        f"import os, sys\nos.symlink({str(other)!r}, {str(report)!r} + '.new')\n"
        f"os.rename({str(report)!r} + '.new', {str(report)!r})\nsys.exit(3)\n"
    )
    done = run(script, logs)
    assert done.returncode == 3
    assert f"xmp: {report} cannot be written: " in done.stderr
    assert other.read_text() == "precious"
