"""Launcher and driver killed while processes of theirs are stopped: these end as well.

A stopped process reads no lifeline. The kernel continues it, or kills it, when that closes.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.in_script import state
from tests.support.process_tree import TREE, running
from tests.support.stage import Stage
from tests.support.waiting import until

pytestmark = pytest.mark.failing

LOCAL = (
    TREE
    + """
    if __name__ == "__main__":
        xmp.launch(sleeping, hosts=3, nprocs=1, engine="local", runtime="cpu")
"""
)
IDLE = (
    TREE
    + """
    if __name__ == "__main__":
        if sys.argv[1] == "local":
            xmp.launch(quick, hosts=2, nprocs=1, engine="local", runtime="cpu")
        else:
            xmp.spawn(quick, nprocs=2, runtime="cpu", start_method=sys.argv[1])
        open("in-fn-0", "w").close()
        signal.pause()
"""
)
EVERY = "every process but the driver"


def stopped(stage: Stage, launcher: int, *names: str) -> list[int]:
    """Stop the processes of these names, or all but the launcher; one may be ending just then."""
    name_of = stage.alive()
    chosen = [
        pid
        for pid, name in name_of.items()
        if (name in names if names != (EVERY,) else pid != launcher)
    ]
    for pid in chosen:
        os.kill(pid, signal.SIGSTOP)
    until(
        lambda: all(state(pid) in "TZX" for pid in chosen),
        what=lambda: f"that all are stopped: {[(name_of.get(p), state(p)) for p in chosen]}",
    )
    return chosen


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("forkserver", EVERY),
        ("forkserver", "xmp-template"),
        ("forkserver", "xmp-script"),
        ("spawn", EVERY),
        ("spawn", "xmp-keeper"),
        ("fork", EVERY),
        ("fork", "xmp-keeper"),
    ],
)
def test_of_a_launch(stage: Stage, method: str, name: str) -> None:
    launcher = running(stage, method, "sleeping")
    assert stopped(stage, launcher, name)
    kill(launcher)
    stage.gone()


@pytest.mark.parametrize(
    "name", [EVERY, "xmp-agent", "xmp-carrier", "xmp-template", "xmp-script", "xmp-supervisor"]
)
def test_of_a_launch_over_hosts(stage: Stage, name: str) -> None:
    driver = running(stage, source=LOCAL)
    assert stopped(stage, driver, name)
    kill(driver)
    stage.gone()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("method", ["forkserver", "local"])
def test_of_a_program_between_two_launches(stage: Stage, method: str, end: int) -> None:
    process = stage.start(IDLE, method)
    stage.reached(process, "in-fn-0")
    assert stopped(stage, process.pid, EVERY)
    os.kill(process.pid, end)
    process.wait(15)
    stage.gone()


@pytest.mark.parametrize(
    "names", [["xmp-template"], ["xmp-script"], ["xmp-script", "xmp-template"]]
)
def test_of_fork_servers_that_were_killed(stage: Stage, names: list[str]) -> None:
    """The spare supervisor, which has no lifeline of its own."""
    process = stage.start(IDLE, "forkserver")
    stage.reached(process, "in-fn-0")
    stage.gone("xmp-supervisor")
    until(lambda: len(stage.named("xmp-spare")) == 1, 5, "a spare")
    assert stopped(stage, process.pid, "xmp-spare")
    kill(process.pid, *(pid for name in names for pid in stage.first_of(name)))
    stage.gone()
