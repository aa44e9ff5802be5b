"""Hosts that a program keeps between two launches: until when, and how they end with it."""

from __future__ import annotations

import signal
import tempfile
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.in_script import signals
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
        ray.init(
            num_cpus=8, num_gpus=0, include_dashboard=False, log_to_driver=False,
            object_store_memory=100_000_000, logging_level=30, _temp_dir=os.environ["RAY_FOLDER"],
        )

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
    ray.shutdown()."""
    source = """
    from xmp.plugins.ray import group

    found = {}
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    first = agents()
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    found["kept"] = agents() == first
    os.kill(in_script.parent(first[0]), 9)
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
    """
    said = ended(stage, ray_folder, source).said
    assert said == {
        "kept": True,
        "another after its actor": True,
        "another after signal 9": True,
        "another after signal 19": True,
    }


def test_fifty_launches_leave_as_much_as_two(stage: Stage, ray_folder: str) -> None:
    source = """
    def held():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    found = []
    for number in range(50):
        xmp.launch(rank, **ONE)
        if number in (9, 49):
            found.append(held())
    in_script.say(found=found)
    """
    before, after = ended(stage, ray_folder, source).said["found"]
    assert all(late <= early + 1 for early, late in zip(before, after)), (before, after)


@pytest.mark.parametrize("daemon", [True, False])
def test_the_driver_ends_before_its_replicas(stage: Stage, ray_folder: str, daemon: bool) -> None:
    source = f"""
    job = xmp.launch(until_go, join=False, daemon={daemon}, **ONE)
    until(lambda: len(list(HERE.glob("in-fn-*"))) == 2, 60)
    """
    driver = start(stage, ray_folder, source)
    if not daemon:
        stage.reached(driver, "in-fn-0", "in-fn-1", seconds=90)
        (stage.folder / "go").touch()
    assert stage.outcome(driver, 120).code == 0
    assert len(list(stage.folder.glob("done-*"))) == (0 if daemon else 2)


def test_a_fork_of_the_driver_refuses_to_launch(stage: Stage, ray_folder: str) -> None:
    source = """
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    pid = os.fork()
    if not pid:
        try:
            xmp.launch(rank, **ONE)
        except BaseException as error:
            (HERE / "refusal").write_text(f"{type(error).__name__}: {error}")
        os._exit(0)
    os.waitpid(pid, 0)
    assert list(xmp.launch(rank, **ONE)) == [0, 1]
    """
    ended(stage, ray_folder, source)
    text = (stage.folder / "refusal").read_text()
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
