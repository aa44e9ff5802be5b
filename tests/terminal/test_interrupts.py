"""Ctrl-C, Ctrl-Z and what refuses to end, in a real terminal with a real foreground group."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest
from in_script import signals, state, switches
from stages import Stage, until

METHODS = ("forkserver", "spawn", "fork")

HEAD = """
    import ctypes, os, signal, sys, time
    import in_script, xmp

    def note(name):
        with open(name, "a") as file:
            file.write("x")

    def waiting(rank):
        try:
            note(f"in-fn-{rank}")
            time.sleep(60)
        except KeyboardInterrupt:
            note(f"interrupted-{rank}")
            raise
        finally:
            note(f"finally-{rank}")

    def swallowing(rank):
        try:
            note(f"in-fn-{rank}")
            time.sleep(60)
        except KeyboardInterrupt:
            note(f"interrupted-{rank}")
        return rank

    def deaf(rank):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # that it has come can be seen
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(f"in-fn-{rank}")
        time.sleep(60)

    def stuck(rank):
        '''In native code with the GIL held, which no signal interrupts: a lock taken twice.'''
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        mutex = ctypes.create_string_buffer(128)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        note(f"in-fn-{rank}")
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)

    def launch(fn, **options):
        try:
            context = xmp.spawn(fn, nprocs=3, runtime="cpu", join=False, **options)
            note("launched")
            in_script.say(ended="results", results=list(context.results()))
        except KeyboardInterrupt as error:
            in_script.say(ended="KeyboardInterrupt", cause=repr(error.__cause__))
        except BaseException as error:
            in_script.say(ended=type(error).__name__, text=str(error)[:2000])
        in_script.say(at=time.monotonic(), left=in_script.belongings()["processes"])

    if __name__ == "__main__":
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        launch(globals()[sys.argv[1]], grace=float(sys.argv[3]), start_method=sys.argv[2])
        after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        in_script.say(handlers=handlers == after)
"""


class Terminal:
    """A script in the foreground of a pseudo-terminal of its own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.master, self._slave = pty.openpty()

    def start(self, *argv: str, source: str = HEAD) -> subprocess.Popen[str]:
        """Start it; return when its three replicas are in their function, and wait there."""
        process = self.stage.start(
            source, *argv, stdin=self._slave, preexec_fn=self._take_terminal
        )  # fmt: skip
        marks = [self.stage.folder / f"in-fn-{rank}" for rank in range(3)]
        if source is HEAD:
            marks.append(self.stage.folder / "launched")
        until(
            lambda: all(m.exists() for m in marks) or process.poll() is not None, 30, "replicas"
        )  # fmt: skip
        assert process.poll() is None, self.stage.outcome(process)
        if source is HEAD:  # with its handlers of all signals
            until(lambda: handles(process.pid, signal.SIGTERM), 10, "the launcher waits")
            until(lambda: {state(p) for p in self.stage.replicas()} == {"S"}, 10, "replicas wait")
        return process

    def _take_terminal(self) -> None:
        """After setsid: make the terminal ours, with us in the foreground."""
        import fcntl

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def close(self) -> None:
        os.close(self.master)
        os.close(self._slave)


CTRL_C, CTRL_Z = b"\x03", b"\x1a"


@pytest.fixture
def terminal(stage: Stage) -> Iterator[Terminal]:
    terminal = Terminal(stage)
    yield terminal
    terminal.close()


def count(stage: Stage, name: str) -> list[int]:
    """How often each replica made a note."""
    paths = [stage.folder / f"{name}-{rank}" for rank in range(3)]
    return [len(path.read_text()) if path.exists() else 0 for path in paths]


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_reaches_every_replica_once(terminal: Terminal, stage: Stage, method: str) -> None:
    process = terminal.start("waiting", method, "5")
    pressed = time.monotonic()
    terminal.press(CTRL_C)
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
    process = terminal.start("swallowing", "forkserver", "5")
    terminal.press(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    assert count(stage, "interrupted") == [1, 1, 1]
    stage.gone()


@pytest.mark.parametrize("fn", ["deaf", "stuck"])
@pytest.mark.parametrize("method", METHODS)
def test_second_ctrl_c_kills_at_once(
    terminal: Terminal, stage: Stage, method: str, fn: str
) -> None:
    process = terminal.start(fn, method, "30")
    terminal.press(CTRL_C)
    until(lambda: all(waits(pid, signal.SIGINT) for pid in stage.replicas()), 10, "the first one")
    assert process.poll() is None, stage.outcome(process)
    pressed = time.monotonic()
    terminal.press(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    assert outcome.said["at"] - pressed < 4
    stage.gone()


@pytest.mark.parametrize("fn", ["deaf", "stuck"])
def test_who_ignores_it_is_killed_after_grace(terminal: Terminal, stage: Stage, fn: str) -> None:
    """SIGINT, grace, SIGTERM, grace, SIGKILL."""
    process = terminal.start(fn, "forkserver", "0.4")
    pressed = time.monotonic()
    terminal.press(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    assert 0.4 <= outcome.said["at"] - pressed < 4.8
    stage.gone()


def test_a_stopped_supervisor_does_not_keep_the_launcher(terminal: Terminal, stage: Stage) -> None:
    process = terminal.start("waiting", "forkserver", "0.5")
    (supervisor,) = stage.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    until(lambda: state(supervisor) == "T", 5, "stopped")
    slept = switches(process.pid)
    pressed = time.monotonic()
    terminal.press(CTRL_C)
    # A second one while the first is still pending would be the same signal.
    until(lambda: switches(process.pid) > slept and state(process.pid) == "S", 10, "the first one")
    terminal.press(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["at"] - pressed < 20
    stage.gone()


def handles(pid: int, number: int) -> bool:
    return number in signals(pid, "SigCgt")


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
    process = terminal.start(str(script), source=SHELL)
    launcher = int((stage.folder / "job").read_text())
    pids = [int(path.name[4:]) for path in stage.folder.glob("pid-*")]
    assert len(pids) == 3
    until(lambda: handles(launcher, signal.SIGTSTP), 10, "the launcher waits")
    terminal.press(CTRL_Z)
    until(lambda: state(launcher) == "T", 10, "the launcher stopped")
    until(lambda: {state(pid) for pid in pids} == {"T"}, 10, "replicas stopped")
    (stage.folder / "release").touch()
    os.killpg(launcher, signal.SIGCONT)
    outcome = stage.outcome(process)
    assert outcome.said["results"] == [0, 1, 2]
    stage.gone()


def test_sigterm_of_the_launcher_leaves_nothing(stage: Stage) -> None:
    process = stage.start(HEAD, "waiting", "forkserver", "5")
    marks = [stage.folder / f"in-fn-{rank}" for rank in range(3)]
    until(lambda: all(m.exists() for m in marks), 30, "replicas")
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
            time.sleep(60)

    def work(rank, *args):
        pass

    if __name__ != "__main__" and {moment!r} == "import":
        for rank in range(3):
            open(f"in-fn-{{rank}}", "w").close()
        time.sleep(60)

    if __name__ == "__main__":
        try:
            xmp.spawn(work, (Slow(),), nprocs=2, runtime="cpu")
        except KeyboardInterrupt:
            in_script.say(at=time.monotonic(), left=in_script.belongings()["processes"])
    """
    process = terminal.start(source=source)
    pressed = time.monotonic()
    terminal.press(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["at"] - pressed < 4
    assert set(outcome.said["left"]) <= {"xmp-template", "xmp-script"}
    stage.gone()
