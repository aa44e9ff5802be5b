"""A process that hangs before xmp's first line in it ends with its launcher and with its parent.

It has armed no lifeline and holds copies of all that its parent had open.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.support import hanging
from tests.support.in_script import is_alive, parent
from tests.support.launching import METHODS
from tests.support.stage import Stage
from tests.support.waiting import until

pytestmark = pytest.mark.failing

FRESH = [
    ("forkserver", "start template.template_main"),
    ("spawn", "start template.template_main"),
    ("spawn", "start replica.fresh_interpreter"),
]
FORKS = [
    ("forkserver", "child xmp-template"),
    ("forkserver", "child xmp-script"),
    ("forkserver", "child xmp-supervisor"),
    ("spawn", "child xmp-keeper"),
    ("spawn", "child xmp-supervisor"),
    ("fork", "child launcher"),
    ("fork", "child xmp-keeper"),
    ("fork", "child xmp-supervisor"),
]
PARENTS = [
    *(("forkserver", f"before xmp-{name}") for name in ("template", "script", "supervisor")),
    *(("forkserver", f"parent xmp-{name}") for name in ("template", "script", "supervisor")),
    ("spawn", "before xmp-keeper"),
    ("fork", "parent xmp-keeper"),
]


def hangs(stage: Stage, method: str, at: str) -> tuple[int, int]:
    """The pids of the launcher and of the process that hangs."""
    (stage.folder / "hang").touch()
    process = hanging.start(stage, at, method)
    # A supervisor goes on to fork the second replica, which has copies of what watches the first.
    stuck = hanging.stuck(stage.folder, 2 if at == "child xmp-supervisor" else 1)
    if at.split()[0] in ("start", "child"):
        for pid in stuck:
            hanging.watched(pid)
    return process.pid, stuck[0]


def kill(*pids: int) -> None:
    for pid in dict.fromkeys(pids):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("method", "at"), [*FRESH, *FORKS, *PARENTS])
def test_launcher_killed(stage: Stage, method: str, at: str) -> None:
    launcher, _ = hangs(stage, method, at)
    kill(launcher)
    stage.gone()


@pytest.mark.parametrize(("method", "at"), [*FRESH, *FORKS])
def test_parent_killed(stage: Stage, method: str, at: str) -> None:
    """The launcher is alive, and may try again: what hung is gone."""
    launcher, stuck = hangs(stage, method, at)
    kill(parent(stuck))
    until(lambda: not is_alive(stuck), what="the end of what hangs")
    if is_alive(launcher):
        kill(launcher)
    stage.gone()


@pytest.mark.parametrize(("method", "at"), FORKS)
def test_everything_above_killed_at_once(stage: Stage, method: str, at: str) -> None:
    """No process is left that could end it."""
    launcher, stuck = hangs(stage, method, at)
    above = [parent(stuck)]
    while above[-1] != launcher:
        above.append(parent(above[-1]))
    kill(*above)
    stage.gone()


@pytest.mark.parametrize(("method", "at"), [*FRESH, *FORKS, ("fork", "before xmp-supervisor")])
def test_launcher_gives_up(stage: Stage, method: str, at: str) -> None:
    launcher, _ = hangs(stage, method, at)
    os.kill(launcher, signal.SIGINT)
    outcome = stage.outcome(stage.last, 15)
    assert "KeyboardInterrupt" in outcome.err, outcome
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_a_launch_does_not_wait_for_ever(stage: Stage, method: str) -> None:
    """What forks supervisors ends one that hangs."""
    forker = "xmp-script" if method == "forkserver" else "xmp-keeper"
    (stage.folder / "hang").touch()
    process = hanging.start(stage, f"child {forker}", method, env={"HANG_SECONDS": "0.5"})
    outcome = stage.outcome(process, 15)
    assert outcome.code == 1
    assert "killed by SIGKILL" in outcome.err, outcome.err
    stage.gone()


IDLE = """
    import os, sys, time
    import in_script, xmp

    def fn(rank):
        open("hang", "w").close()
        return rank

    if __name__ == "__main__":
        launch = lambda: list(xmp.spawn(fn, nprocs=2, runtime="cpu"))
        launch()
        while not os.path.exists("next"):
            time.sleep(0.005)
        os.unlink("hang")
        in_script.say(again=launch())
"""
"""What the template forks after the first launch hangs: the next supervisor."""


def idle_fork_hangs(stage: Stage) -> tuple[int, int]:
    process = hanging.start(stage, "child xmp-template", source=IDLE, file=False)
    (stuck,) = hanging.stuck(stage.folder)
    hanging.watched(stuck)
    return process.pid, stuck


@pytest.mark.parametrize("victims", ["launcher", "forker", "both"])
def test_what_an_idle_fork_server_forks_ends_too(stage: Stage, victims: str) -> None:
    launcher, stuck = idle_fork_hangs(stage)
    forker = parent(stuck)
    if victims != "launcher":
        kill(forker)
    if victims != "forker":
        kill(launcher)
    until(lambda: not is_alive(stuck), what="the end of what hangs")
    if victims == "forker":
        kill(launcher)
    stage.gone()


def test_a_spare_that_hangs_takes_no_launch(stage: Stage) -> None:
    idle_fork_hangs(stage)
    (stage.folder / "next").touch()
    assert stage.outcome(stage.last).said["again"] == [0, 1]
    stage.gone()
