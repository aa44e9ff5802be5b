"""Ctrl-C, Ctrl-Z and what refuses to end, in a real terminal with a real foreground group."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.in_script import signals, state, switches
from tests.support.interrupt_program import HEAD, handles, started
from tests.support.launching import METHODS
from tests.support.stage import Stage
from tests.support.terminal import CTRL_C, CTRL_Z, Terminal
from tests.support.waiting import until

pytestmark = pytest.mark.failing


def count(stage: Stage, name: str) -> list[int]:
    """How often each replica made a note."""
    paths = [stage.folder / f"{name}-{rank}" for rank in range(3)]
    return [len(path.read_text()) if path.exists() else 0 for path in paths]


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_reaches_every_replica_once(terminal: Terminal, stage: Stage, method: str) -> None:
    process = started(terminal, "waiting", method, "5")
    pressed = time.monotonic()
    terminal.type(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt", outcome.said
    assert outcome.said["at"] - pressed < 4  # grace is 5
    assert count(stage, "interrupted") == [1, 1, 1]
    assert count(stage, "finally") == [1, 1, 1]
    assert set(outcome.said["left"]) <= {"xmp-template", "xmp-script"}
    assert outcome.said["handlers"]
    stage.gone()


def test_an_interrupted_launch_is_never_success(terminal: Terminal, stage: Stage) -> None:
    """Replicas that catch the interrupt and return have nevertheless been interrupted."""
    process = started(terminal, "swallowing", "forkserver", "5")
    terminal.type(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    assert count(stage, "interrupted") == [1, 1, 1]
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_second_ctrl_c_kills_at_once(terminal: Terminal, stage: Stage, method: str) -> None:
    process = started(terminal, "stuck", method, "30")
    terminal.type(CTRL_C)
    until(lambda: all(waits(pid, signal.SIGINT) for pid in stage.replicas()), 10, "the first one")
    assert process.poll() is None, stage.outcome(process)
    pressed = time.monotonic()
    terminal.type(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    assert outcome.said["at"] - pressed < 4
    stage.gone()


def test_a_replica_that_ignores_it_is_killed_after_the_grace(
    terminal: Terminal, stage: Stage
) -> None:
    """SIGINT, grace, SIGKILL; after a second the user reads what it waits for."""
    process = started(terminal, "deaf", "forkserver", "1.5")
    pressed = time.monotonic()
    terminal.type(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    assert outcome.said["at"] - pressed >= 1.5
    line = "xmp: waiting for ranks 0-2 to end, 1.5 s at most (grace=); Ctrl-C again kills them"
    assert outcome.err.count(line) == 1, outcome.err
    stage.gone()


def test_a_replica_that_waits_for_sigterm_alone_gets_it(terminal: Terminal, stage: Stage) -> None:
    """It ignores SIGINT and saves its work at SIGTERM, as under Slurm and Kubernetes."""
    process = started(terminal, "saves_at_sigterm", "forkserver", "10")
    pressed = time.monotonic()
    terminal.type(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    assert outcome.said["at"] - pressed < 5
    assert count(stage, "saved") == [1, 1, 1]


IMPATIENT = HEAD.replace(
    "import in_script, xmp\n",
    "import in_script, xmp\n    import xmp._processes.launcher.launch as launches\n"
    "    launches._ANSWER_WAIT = 0.5  # beside the grace\n",
)


def test_a_stopped_supervisor_does_not_keep_the_launcher(terminal: Terminal, stage: Stage) -> None:
    process = started(terminal, "waiting", "forkserver", "0.5", source=IMPATIENT)
    (supervisor,) = stage.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    until(lambda: state(supervisor) == "T", 5, "stopped")
    slept = switches(process.pid)
    pressed = time.monotonic()
    terminal.type(CTRL_C)
    # A second one while the first is still pending would be the same signal.
    until(lambda: switches(process.pid) > slept and state(process.pid) == "S", 10, "the first one")
    terminal.type(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["at"] - pressed < 20
    stage.gone()


def waits(pid: int, number: int) -> bool:
    """Whether a signal has come that is blocked there."""
    return number in signals(pid, "SigPnd") | signals(pid, "ShdPnd")


SHELL = """
    import os, signal, subprocess, sys
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = subprocess.Popen([sys.executable, *sys.argv[1:]], preexec_fn=os.setpgrp)
    os.tcsetpgrp(0, job.pid)
    with open("job", "w") as file:
        file.write(str(job.pid))
    sys.exit(job.wait())
"""


def test_ctrl_z_stops_the_replicas_and_fg_continues_them(terminal: Terminal, stage: Stage) -> None:
    """The kernel stops no group without a parent in its session: a shell of ours is that."""
    job = """
    import os, sys, time
    import in_script, xmp

    def counting(rank):
        open(f"pid-{os.getpid()}", "w").close()
        open(f"in-fn-{rank}", "w").close()
        while not os.path.exists("release"):
            time.sleep(0.01)
        return rank

    if __name__ == "__main__":
        in_script.say(results=list(xmp.spawn(counting, nprocs=3, runtime="cpu")))
    """
    script = stage.write(job, "job.py")
    process = started(terminal, str(script), source=SHELL)
    launcher = int((stage.folder / "job").read_text())
    pids = [int(path.name[4:]) for path in stage.folder.glob("pid-*")]
    assert len(pids) == 3
    until(lambda: handles(launcher, signal.SIGTSTP), 10, "the launcher waits")
    terminal.type(CTRL_Z)
    until(lambda: state(launcher) == "T", 10, "the launcher stopped")
    until(lambda: {state(pid) for pid in pids} == {"T"}, 10, "replicas stopped")
    (stage.folder / "release").touch()
    os.killpg(launcher, signal.SIGCONT)
    outcome = stage.outcome(process)
    assert outcome.said["results"] == [0, 1, 2]
    stage.gone()


def test_sigterm_of_the_launcher_leaves_nothing(stage: Stage) -> None:
    process = stage.start(HEAD, "waiting", "forkserver", "5")
    stage.in_function(process)
    process.terminate()
    assert stage.outcome(process).code == -signal.SIGTERM
    stage.gone()


@pytest.mark.parametrize("moment", ["import", "load"])
def test_ctrl_c_while_it_starts(terminal: Terminal, stage: Stage, moment: str) -> None:
    source = f"""
    import os, sys, time
    import in_script, xmp

    class Slow:
        def __getstate__(self):
            return {{"any": 1}}

        def __setstate__(self, state):
            for rank in range(3):
                open(f"in-fn-{{rank}}", "w").close()
            in_script.never_returns()

    def work(rank, *args):
        pass

    if __name__ != "__main__" and {moment!r} == "import":
        for rank in range(3):
            open(f"in-fn-{{rank}}", "w").close()
        in_script.never_returns()

    if __name__ == "__main__":
        try:
            xmp.spawn(work, (Slow(),), nprocs=2, runtime="cpu")
        except KeyboardInterrupt:
            in_script.say(at=time.monotonic(), left=in_script.belongings()["processes"])
    """
    process = started(terminal, source=source)
    pressed = time.monotonic()
    terminal.type(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["at"] - pressed < 4
    assert set(outcome.said["left"]) <= {"xmp-template", "xmp-script"}
    stage.gone()
