"""Hosts that a program keeps between two launches: until when, and how they end with it."""

from __future__ import annotations

import signal
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.in_script import signals
from tests.support.ray_cluster import RayCluster
from tests.support.ray_hosts import RAY
from tests.support.stage import Outcome, Stage
from tests.support.waiting import until

pytestmark = pytest.mark.ray

HEAD = """
    import json, os, pathlib, signal, sys, threading, time
    import in_script, ray, xmp
    from waiting import until

    HERE = pathlib.Path(__file__).parent
    ONE = dict(hosts=1, engine="ray", nprocs=2, runtime="cpu", progress=False)

    def begin():
        own = {}
        if "RAY_FOLDER" in os.environ:
            own = dict(
                num_cpus=8, num_gpus=0, include_dashboard=False,
                object_store_memory=100_000_000, _temp_dir=os.environ["RAY_FOLDER"],
            )
        ray.init(log_to_driver=False, logging_level=30, **own)

    def rank(rank):
        return rank

    def waits(rank):
        (HERE / f"in-fn-{rank}").touch()
        in_script.never_returns()

    def until_go(rank):
        (HERE / f"in-fn-{rank}").touch()
        until((HERE / "go").exists, 60)
        (HERE / f"done-{rank}").touch()

    def agents():
        return in_script.called("xmp-agent")

    def free():
        return ray.available_resources().get("CPU", 0)

    if __name__ == "__main__":
        begin()
"""


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """Ray's sockets lie there: their paths may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        yield folder


class Ended(NamedTuple):
    """A driver that has ended, and its folder."""

    outcome: Outcome
    folder: Path


def start(stage: Stage, ray_folder: str, source: str) -> Any:
    guarded = textwrap.indent(source, "    ")
    return stage.start(HEAD + guarded, env={**RAY, "RAY_FOLDER": ray_folder})


def ended(stage: Stage, ray_folder: str, source: str, code: int = 0) -> Outcome:
    outcome = stage.outcome(start(stage, ray_folder, source), 120)
    assert outcome.code == code, outcome
    until(lambda: not [n for n in stage.alive().values() if n.startswith("xmp-")], 5)
    return outcome


def test_agents_stay_until_something_ends_them(stage: Stage, ray_folder: str) -> None:
    """An actor or agent that is killed or stopped meanwhile, shutdown(), the idle limit,
    ray.shutdown(); the end of the program, which ends replicas that are daemons."""
    source = """
    from xmp.plugins.ray import group

    found = {}
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    first = agents()
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    found["kept"] = agents() == first
    os.kill(in_script.parent(in_script.parent(first[0])), 9)
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    found["another after its actor"] = agents() != first
    for number in (9, signal.SIGSTOP):
        (agent,) = agents()
        os.kill(agent, number)
        assert list(xmp.launch(rank, **ONE)) == [0, 1]
        found[f"another after signal {number:d}"] = agent not in agents()
    xmp.shutdown()
    until(lambda: not agents() and free() == 8, 10)
    group._IDLE = 0.5
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    until(lambda: not agents() and free() == 8, 10)
    group._IDLE = 600
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    ray.shutdown()
    begin()
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    in_script.say(**found)
    job = xmp.launch(until_go, join=False, daemon=True, **ONE)
    until(lambda: len(list(HERE.glob("in-fn-*"))) == 2, 60)
    """
    said = ended(stage, ray_folder, source).said
    other = ("its actor", "signal 9", "signal 19")
    assert said == {"kept": True, **{f"another after {each}": True for each in other}}
    assert not list(stage.folder.glob("done-*"))


MANY = """
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    found = []
    for number in range(50):
        xmp.launch(rank, **ONE)
        if number in (9, 49):
            found.append(held())
    in_script.say(found=found)

    pid = os.fork()
    if not pid:
        try:
            xmp.launch(rank, **ONE)
        except BaseException as error:
            (HERE / "refusal").write_text(f"{type(error).__name__}: {error}")
        os._exit(0)
    os.waitpid(pid, 0)
    in_script.say(after_fork=list(xmp.launch(rank, **ONE)))

    job = xmp.launch(until_go, join=False, daemon=False, **ONE)
    until(lambda: len(list(HERE.glob("in-fn-*"))) == 2, 60)
"""


@pytest.fixture(scope="module")
def many(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A driver of the cluster that ends before the replicas of its last launch."""
    stage = Stage(tmp_path_factory.mktemp("driver"))
    driver = stage.start(HEAD + textwrap.indent(MANY, "    "), env=cluster.env)
    stage.reached(driver, "in-fn-0", "in-fn-1", seconds=180)
    (stage.folder / "go").touch()
    outcome = stage.outcome(driver, 60)
    assert outcome.code == 0, outcome
    stage.gone()
    return Ended(outcome, stage.folder)


def test_fifty_launches_leave_as_much_as_two(many: Ended) -> None:
    before, after = many.outcome.said["found"]
    assert all(late <= early + 1 for early, late in zip(before, after)), (before, after)


def test_the_driver_waits_at_its_end_for_replicas_that_are_no_daemons(many: Ended) -> None:
    assert len(list(many.folder.glob("done-*"))) == 2


def test_a_fork_of_the_driver_refuses_to_launch(many: Ended) -> None:
    assert many.outcome.said["after_fork"] == [0, 1]
    text = (many.folder / "refusal").read_text()
    assert text.startswith("StartError:")
    assert "is a fork of one that is connected to Ray" in text


def test_a_sigterm_asks_the_replicas(stage: Stage, ray_folder: str) -> None:
    """Although ray.init sets a handler of its own."""
    source = """
    def steps(rank):
        while not xmp.preempted():
            (HERE / f"in-fn-{rank}").touch()
            time.sleep(0.01)
        return rank

    print(list(xmp.launch(steps, **ONE)), xmp.preempted())
    """
    driver = start(stage, ray_folder, source)
    stage.reached(driver, "in-fn-0", "in-fn-1", seconds=90)
    # While hosts start, the signal ends the driver at once.
    until(lambda: signal.SIGTERM in signals(driver.pid, "SigCgt"), 30, "the driver waits")
    driver.send_signal(signal.SIGTERM)
    outcome = stage.outcome(driver, 60)
    assert (outcome.code, outcome.out) == (0, "[0, 1] True\n"), outcome
