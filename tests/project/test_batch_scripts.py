"""The batch scripts of scripts/clusters: they parse, and run up to their tasks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.stage import ROOT

FOLDER = ROOT / "scripts" / "clusters"


@pytest.mark.parametrize("name", ["train.sbatch", "train.bsub", "tpu-vm.sh"])
def test_scripts_are_bash(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(FOLDER / name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def directives(name: str, word: str) -> list[str]:
    lines = (FOLDER / name).read_text().splitlines()
    found = [line.removeprefix(f"#{word} ") for line in lines if line.startswith(f"#{word} ")]
    body = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    assert all(not line.startswith(f"#{word}") for line in lines[body:]), "the rest is not read"
    return found


def test_the_batch_script_of_slurm() -> None:
    options = dict(
        line.removeprefix("--").split("=") for line in directives("train.sbatch", "SBATCH")
    )
    assert (options["nodes"], options["ntasks-per-node"]) == ("2", "1")
    assert options["signal"].startswith("TERM@")
    assert (
        (FOLDER / "train.sbatch")
        .read_text()
        .endswith("srun --kill-on-bad-exit=1 python train.py\n")
    )


def test_the_batch_script_of_lsf() -> None:
    options = directives("train.bsub", "BSUB")
    assert "-n 2" in options
    assert '-R "span[ptile=1] affinity[core(32)]"' in options
    assert (FOLDER / "train.bsub").read_text().endswith("\nblaunch python train.py\n")


STAND_IN = '#!/bin/sh\nprintf "%s %s %s\\n" "$MASTER_PORT" "${#XMP_JOB_SECRET}" "$*"\n'


@pytest.mark.parametrize(
    ("name", "starter", "env"),
    [
        ("train.sbatch", "srun", {"SLURM_JOB_ID": "123456", "SLURM_CPUS_PER_TASK": "32"}),
        ("train.bsub", "blaunch", {"LSB_JOBID": "123456"}),
    ],
)
def test_a_batch_script_up_to_its_tasks(
    name: str, starter: str, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / starter).write_text(STAND_IN)
    (tmp_path / starter).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(FOLDER / name)], env={**env, "PATH": path}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    port, secret, words = done.stdout.split(maxsplit=2)
    assert (port, secret) == ("23456", "44")
    assert words.endswith("python train.py\n")


def test_the_script_for_a_tpu_says_what_it_needs() -> None:
    done = subprocess.run([str(FOLDER / "tpu-vm.sh")], capture_output=True, text=True)
    assert done.returncode != 0
    assert "usage: ./tpu-vm.sh NAME ZONE" in done.stderr
