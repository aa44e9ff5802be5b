"""``xmp run --engine ray`` on a real cluster; doctor, stacks and clean beside its agents."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.ray_cluster import ENV, RayCluster
from tests.support.stage import Outcome, Stage
from tests.support.waiting import until

pytestmark = pytest.mark.ray

RUN = ("-m", "xmp", "run", "--engine", "ray", "--hosts", "2", "--runtime", "cpu", "-n", "2")
ENGINE = ("xmp-agent", "xmp-template", "xmp-supervisor", "xmp-spare", "xmp-carrier")


@pytest.fixture
def run(stage: Stage, cluster: RayCluster) -> Iterator[Callable[..., Outcome]]:
    """``xmp run`` with these words; no process of xmp may be left on the hosts."""

    def run(*words: str, **options: Any) -> Outcome:
        return stage.python(*RUN, *words, env=cluster.env, timeout=90, **options)

    yield run
    stage.gone()
    cluster.stage.gone(*ENGINE, seconds=4)


RANKS = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")
line = json.dumps([*(int(os.environ[n]) for n in names), sys.argv, __name__, __file__])
os.write(1, line.encode() + b"\\n")
if sys.argv[1:] and os.environ["RANK"] == "0":
    raise ValueError("no such label")  # the line that the traceback shows
"""


def test_each_replica_is_the_script(stage: Stage, run: Callable[..., Outcome]) -> None:
    path = stage.write(RANKS, "train.py")
    done = run("train.py")
    assert (done.code, done.err) == (0, "")
    lines = [line.split("] ", 1) for line in done.out.splitlines()]
    found = sorted(json.loads(said) for _, said in lines)
    prefixes = [f"[{os.uname().nodename}#{rank // 2}:{rank}" for rank in range(4)]
    assert sorted(prefix for prefix, _ in lines) == prefixes
    assert found == [
        [r, r % 2, 4, 2, r // 2, ["train.py"], "__main__", str(path)] for r in range(4)
    ]


def test_the_hosts_need_not_have_the_file(stage: Stage, run: Callable[..., Outcome]) -> None:
    """The driver reads it from a descriptor of its own, which leads nowhere on the hosts."""
    with stage.write(RANKS, "train.py").open() as file:
        name = f"/proc/self/fd/{file.fileno()}"
        done = run("--prefix", "", "--show", "0", name, "fails", pass_fds=[file.fileno()])
    assert done.code == 1
    assert done.out, done.err
    assert json.loads(done.out)[-1] == name
    assert "# the line that the traceback shows" in done.err
    assert re.search(r"rank 0\b.* on ", done.err), done.err


def test_a_module_of_the_hosts_and_a_status(run: Callable[..., Outcome]) -> None:
    done = run("-m", "platform")
    assert (done.code, len(done.out.splitlines()), done.err) == (0, 4, "")
    assert run("--grace", "1", "--no-python", "sh", "-c", "exit $((RANK + 7))").code in range(7, 11)


WAITS = """
import os, signal

def never_returns():
    while True:
        signal.pause()

os.write(1, b"here\\n")
never_returns()
"""


def command(stage: Stage, cluster: RayCluster, *words: str) -> str:
    done = stage.python("-m", "xmp", *words, env=cluster.env, timeout=60)
    assert done.code == 0, done.err
    return done.out


def four_wait(stage: Stage, cluster: RayCluster) -> tuple[subprocess.Popen[str], Path]:
    """`xmp run`, all of whose replicas wait, and the file that has its output."""
    path, out = stage.write(WAITS, "train.py"), stage.folder / "out"
    command = [sys.executable, *RUN, "--grace", "1", str(path)]
    with open(out, "w") as file:
        driver = stage.start_command(*command, env=cluster.env, stdout=file, stderr=file)
    until(lambda: out.read_text().count("here\n") == 4 or driver.poll(), 60, out.read_text)
    assert driver.poll() is None, out.read_text()
    return driver, out


@pytest.mark.alone
def test_output_comes_live_and_commands_of_the_host_know_the_launch(
    stage: Stage, cluster: RayCluster
) -> None:
    driver, out = four_wait(stage, cluster)
    agents = cluster.stage.named("xmp-agent")
    assert len(agents) == 2
    for agent in agents:
        assert "never_returns" in command(stage, cluster, "stacks", str(agent))
    assert command(stage, cluster, "clean") == "nothing left behind\n"
    assert cluster.stage.named("xmp-agent") == agents
    os.kill(driver.pid, signal.SIGINT)
    assert driver.wait(20) == 130, out.read_text()
    cluster.stage.gone(*ENGINE, seconds=4)


WARM = """
import json, xmp

def function(rank):
    return rank

if __name__ == "__main__":
    for number in range(2):
        results = xmp.launch(function, hosts=2, engine="ray", nprocs=2, runtime="cpu")
        print(json.dumps({"number": number, "results": list(results)}), flush=True)
        if not number:
            input()
"""


@pytest.mark.alone
def test_clean_leaves_agents_that_wait_for_their_driver(stage: Stage, cluster: RayCluster) -> None:
    path, out = stage.write(WARM, "warm.py"), stage.folder / "out"
    with open(out, "w") as file:
        driver = stage.start_command(
            sys.executable, str(path), env=cluster.env, stdin=-1, stdout=file, stderr=file
        )
    until(lambda: '"number": 0' in out.read_text() or driver.poll(), 60, out.read_text)
    assert driver.poll() is None, out.read_text()
    agents = cluster.stage.named("xmp-agent")
    assert len(agents) == 2
    assert command(stage, cluster, "clean") == "nothing left behind\n"
    assert "left by an earlier launch" not in command(stage, cluster, "doctor", "--runtime", "cpu")
    driver.communicate("\n", timeout=30)
    assert '"number": 1' in out.read_text()
    assert driver.returncode == 0
    cluster.stage.gone(*ENGINE, seconds=4)


@pytest.mark.alone
def test_clean_ends_what_a_dead_agent_has_left(stage: Stage, cluster: RayCluster) -> None:
    """Its supervisor is stopped, too, so that it cannot end the replicas."""
    driver, out = four_wait(stage, cluster)
    agent = psutil.Process(cluster.stage.named("xmp-agent")[0])
    below = agent.children(recursive=True)
    replicas = [each for each in below if each.name().startswith("xmp-replica-")]
    above = [each for each in below if each not in replicas]
    assert len(replicas) == 2
    for each in [*replicas, *above]:
        each.suspend()
    for each in [*above, agent]:
        each.kill()
    assert driver.wait(60) == 1, out.read_text()
    command(stage, cluster, "clean")  # if the kernel has not ended them before
    psutil.wait_procs(replicas, 5)
    assert not any(each.is_running() for each in replicas)
    cluster.stage.gone(*ENGINE, seconds=4)


def test_doctor_names_the_hosts(stage: Stage, cluster: RayCluster) -> None:
    said = command(stage, cluster, "doctor", "--runtime", "cpu")
    (line,) = [line for line in said.splitlines() if "note: Ray" in line]
    assert f"the cluster at {cluster.address} has 2 hosts" in line
    assert f"{platform.node()} (127.0.0.2: 2 CPU)" in line
    assert "(127.0.0.3: 2 CPU)" in line
    assert line.endswith("authentication: disabled")


def test_doctor_waits_only_so_long_for_a_cluster(stage: Stage, cluster: RayCluster) -> None:
    env = {**ENV, "RAY_ADDRESS": "127.0.0.9:1", "RAY_TMPDIR": str(cluster.folder)}
    done = stage.python(
        "-m", "xmp", "doctor", "--runtime", "cpu", "--engine", "ray", env=env, timeout=40
    )
    assert done.code == 1
    assert re.search(r"problem: Ray .*127\.0\.0\.9:1 \(RAY_ADDRESS\) cannot be reached", done.out)
    assert done.seconds < 25
    del env["RAY_ADDRESS"]
    done = stage.python(
        "-m", "xmp", "doctor", "--runtime", "cpu", "--engine", "ray", env=env, timeout=40
    )
    assert (done.code, "would start one" in done.out) == (0, True)
