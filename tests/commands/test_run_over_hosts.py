"""``xmp run --engine local --hosts 2``: one command runs a script on several hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.stage import Stage
from tests.support.waiting import until
from xmp.__main__ import main

pytestmark = pytest.mark.hosts

RANKS = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")
line = json.dumps([*(int(os.environ[n]) for n in names), sys.argv, __name__])
os.write(1, line.encode() + b"\\n")
"""
LOCAL = ("-m", "xmp", "run", "--engine", "local", "--hosts", "2", "--runtime", "cpu", "-n", "2")


def ranks(out: str) -> list[Any]:
    lines = [re.fullmatch(r"\[127\.0\.0\.([23]):([0-3])\] (.*)", line) for line in out.splitlines()]
    found = [(int(line[1]), int(line[2]), json.loads(line[3])) for line in lines if line]
    assert len(found) == len(lines), out
    assert all((host, rank) == (2 + said[4], said[0]) for host, rank, said in found), out
    return sorted(said for _, _, said in found)


def expected(target: str, *args: str) -> list[Any]:
    return [[r, r % 2, 4, 2, r // 2, [target, *args], "__main__"] for r in range(4)]


def test_each_replica_is_the_script(stage: Stage) -> None:
    stage.write(RANKS, "train.py")
    done = stage.python(*LOCAL, "train.py", "--lr", "0.1", timeout=60)
    assert (done.code, done.err) == (0, "")
    assert ranks(done.out) == expected("train.py", "--lr", "0.1")
    stage.gone()


def test_a_module_with_variables_for_the_options(stage: Stage) -> None:
    stage.write(RANKS, "package/train.py")
    env = {"XMP_RUN_ENGINE": "local", "XMP_RUN_HOSTS": "2", "XMP_RUN_NPROCS": "2"}
    done = stage.python(
        "-m", "xmp", "run", "--runtime", "cpu", "-m", "package.train", env=env, timeout=60
    )
    assert done.code == 0, done.err
    assert ranks(done.out) == expected(str(stage.folder / "package/train.py"))


def test_a_program(stage: Stage) -> None:
    words = ("sh", "-c", 'echo "$RANK of $WORLD_SIZE"')
    done = stage.python(*LOCAL, "--prefix", "", "--no-python", *words, timeout=60)
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == [f"{rank} of 4" for rank in range(4)]


FAILS = """
import os, sys
import in_script
if os.environ["RANK"] == "3":
    sys.exit(7)
in_script.never_returns()
"""


def test_the_status_is_that_of_the_rank_that_failed(stage: Stage) -> None:
    stage.write(FAILS, "train.py")
    done = stage.python(*LOCAL, "--grace", "1", "train.py", timeout=60)
    assert done.code == 7
    assert re.search(r"rank 3\b.* on (host )?127\.0\.0\.3", done.err), done.err
    stage.gone()


WAITS = """
import os
import in_script
os.write(1, b"here\\n")
in_script.never_returns()
"""


def test_output_comes_live_and_ctrl_c_ends_all(stage: Stage) -> None:
    path, out = stage.write(WAITS, "train.py"), stage.folder / "out"
    with open(out, "w") as file:
        command = stage.start_command(
            *(sys.executable, *LOCAL, "--grace", "1", str(path)), stdout=file, stderr=file
        )
    until(lambda: out.read_text().count("here\n") == 4 or command.poll(), 60, out.read_text)
    assert command.poll() is None, out.read_text()
    os.kill(command.pid, signal.SIGINT)
    assert command.wait(20) == 130, out.read_text()
    stage.gone()


REFUSED: list[tuple[list[str], str]] = [
    (["--runtime-env", "{}"], "--runtime-env without --engine"),
    (["--engine", "local", "--hosts", "2", "--runtime-env", '{"pip": []}'], "runtime_env"),
    (["--engine", "ray", "--hosts", "2", "--runtime-env", "{"], "no JSON that can be read"),
    (["--engine", "ray", "--hosts", "2", "--runtime-env", "/no/such"], "give JSON, or the path"),
    (["--hosts", "2"], "--hosts 2: give --engine too"),
    (["--cwd", "/x", "--python", "p"], "--python, --cwd without --engine"),
    (["--engine", "local", "--hosts", "2", "--cwd", "/x"], "only 'ssh' and 'slurm' take it"),
    (["--engine", "ssh", "--hosts", "2"], "names of hosts"),
    (["--engine", "ssh", "--hosts", "a,a"], "a stands there more than once"),
    (["--engine", "local"], "engine='local' without hosts="),
    (["--gather-logs", "--log-dir", "x"], "--gather-logs without --engine"),
    (["--engine", "local", "--hosts", "2", "--gather-logs"], "--gather-logs without --log-dir"),
    (["--engine", "rya", "--hosts", "2"], "engine='rya': .* Did you mean 'ray'?"),
    (["--engine", "local", "--hosts", "v6e:4x4"], "hosts must be a whole number from 1 up"),
    (["--engine", "local", "--hosts", "0"], "hosts=0: give a whole number from 1 up"),
    (["--engine", "ray", "--hosts", "2", "--nnodes", "2"], "--nnodes and --engine ray"),
    (["--engine", "ray", "--hosts", "2", "--standalone"], "--standalone and --engine ray"),
    (["--engine", "ray", "--hosts", "2", "--node-rank", "0"], "--node-rank and --engine ray"),
    (["--engine", "ray", "--hosts", "2", "--master-addr", "h"], "--master-addr and --engine ray"),
    (["--engine", "ray", "--hosts", "2", "--master-port", "1"], "--master-port and --engine ray"),
    (["--engine", "ray", "--hosts", "2", "--rdzv-backend", "c10d"], "--rdzv-backend and --engine"),
    (["--engine", "ray", "--hosts", "2", "-n", "gpu"], "-n gpu and --engine ray"),
    (["--engine", "ray", "--hosts", "2", "-n", "cpu"], "-n cpu and --engine ray"),
    (["--engine", "local", "--hosts", "2", "--start-method", "fork"], "--start-method fork"),
    (["--engine", "local", "--hosts", "2", "--local-ranks-filter", "0"], "give --show and the"),
]


@pytest.mark.parametrize(("words", "text"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_does_not_fit_is_refused(
    words: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    monkeypatch.chdir(tmp_path)
    code, said = main(["run", *words, "train.py"]), capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert re.search(text, said.err), said.err
    assert said.err.startswith("xmp: ")
    assert said.err.count("\n") == 1


def test_a_command_of_another_launcher_starts_no_hosts(stage: Stage) -> None:
    stage.write(RANKS, "train.py")
    env = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = stage.python(*LOCAL, "train.py", env=env)
    assert (done.code, done.out) == (2, "")
    assert "With --engine local start this command once" in done.err
    assert done.err.startswith("xmp: ")
