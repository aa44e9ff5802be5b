"""`xmp stacks` and Ctrl-\\: where the replicas are, while they and the launcher go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_script import parent, state
from stages import Stage, until
from test_interrupts import CTRL_C, HEAD, Terminal, handles

from xmp._errors import XmpError
from xmp._processes import outside

METHODS = ("forkserver", "spawn", "fork")
CTRL_BACKSLASH = b"\x1c"

SOURCE = """
    import ctypes, faulthandler, os, signal, sys, time
    import xmp

    def load_batch(name):
        sleep = ctypes.PyDLL(None).sleep
        open(name, "w").close()
        while not os.path.exists("go"):
            sleep(1)

    def all_reduce(name):
        open(name, "w").close()
        while not os.access("go", os.F_OK): time.sleep(0.02)  # one line: it is in every stack

    def fn(rank):
        (load_batch if rank == 1 else all_reduce)(f"in-fn-{rank}")
        return rank

    def own(*_):
        open("own", "a").close()

    if __name__ == "__main__":
        if "handler" in sys.argv:
            signal.signal(signal.SIGQUIT, own)
        if "faulthandler" in sys.argv:
            faulthandler.register(signal.SIGQUIT, open("own", "w"))
        print(list(xmp.spawn(fn, nprocs=3, runtime="cpu", start_method=sys.argv[1])))
"""


@pytest.fixture
def terminal(stage: Stage) -> Iterator[Terminal]:
    terminal = Terminal(stage)
    yield terminal
    terminal.close()


def ask(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xmp", "stacks", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, **options
    )  # type: ignore[call-overload, no-any-return]


def start(stage: Stage, method: str) -> subprocess.Popen[str]:
    process = stage.start(SOURCE, method)
    marks = [stage.folder / f"in-fn-{rank}" for rank in range(3)]
    until(lambda: all(m.exists() for m in marks) or process.poll() is not None, 30, "replicas")
    assert process.poll() is None, stage.outcome(process)
    until(lambda: {state(pid) for pid in stage.replicas()} == {"S"}, 10, "replicas sleep")
    return process


def ends_well(stage: Stage, process: subprocess.Popen[str]) -> None:
    (stage.folder / "go").touch()
    outcome = stage.outcome(process)
    assert (outcome.code, outcome.out.strip()) == (0, "[0, 1, 2]"), outcome
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_identical_stacks_are_told_once(stage: Stage, method: str) -> None:
    process = start(stage, method)
    (supervisor,) = stage.supervisors()
    for pid in (process.pid, supervisor, *stage.replicas()):
        told = ask(pid)
        assert told.returncode == 0, told
        head, *lines = told.stdout.splitlines()
        assert head == f"launch of process {process.pid}: 3 replicas, supervisor {supervisor}"
        assert "ranks 0, 2:" in lines
        assert "rank 1:" in lines
        first, second = told.stdout.split("rank 1:")
        assert ("in all_reduce" in first, "in load_batch" in first) == (True, False)
        assert ("in all_reduce" in second, "in load_batch" in second) == (False, True)
        assert "_processes" not in told.stdout
    ends_well(stage, process)


def test_hundreds_need_no_more_descriptors_than_one_may_have(stage: Stage) -> None:
    process = start(stage, "forkserver")
    command = f"ulimit -S -n 8; exec {sys.executable} -m xmp stacks {process.pid}"
    told = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=30, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert "ranks 0, 2:" in told.stdout
    ends_well(stage, process)


def test_without_a_pid_there_is_one_launch_or_a_list(stage: Stage) -> None:
    process, second = start(stage, "forkserver"), Stage(stage.folder / "second")
    second.folder.mkdir()
    try:
        other = start(second, "spawn")
        told = ask()
        assert told.returncode == 1
        assert told.stderr.startswith("xmp: more than one launch is running: give a pid")
        for pid in (process.pid, other.pid):
            assert f"\n  pid {pid}: 3 replicas, supervisor " in told.stderr
        assert f"launch of process {other.pid}:" in ask(other.pid).stdout
        ends_well(second, other)
    finally:
        second.end()
    ends_well(stage, process)


def test_stopped_processes_hide_nobody(stage: Stage) -> None:
    process = start(stage, "forkserver")
    stopped = [process.pid, *stage.supervisors(), stage.replicas()[2]]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(state(pid) == "T" for pid in stopped), 5, "stopped")
    told = ask(process.pid)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert told.returncode == 0, told
    assert told.stdout.splitlines()[0].endswith("(stopped)")
    assert "rank 0:" in told.stdout
    assert "rank 2:\n  no answer: stopped, kernel function" in told.stdout
    ends_well(stage, process)


def test_adopted_children_are_no_replicas(stage: Stage) -> None:
    """The supervisor takes in what a replica has left; that has its name and its files."""
    source = SOURCE.replace(
        "    def own(",
        """
    def orphan():
        if os.fork() == 0:
            os.setpgid(0, 0)
            if os.fork() == 0:
                os.setsid()
                open("orphan-" + str(os.getpid()), "w").close()
                time.sleep(60)
            os._exit(0)

    def own(""",
    ).replace("        return rank\n", "        return rank\n", 1)
    source = source.replace("    def fn(rank):\n", "    def fn(rank):\n        orphan()\n")
    process = stage.start(source, "forkserver")
    until(lambda: len(list(stage.folder.glob("orphan-*"))) == 3, 30, "orphans")
    until(lambda: len(list(stage.folder.glob("in-fn-*"))) == 3, 30, "replicas")
    orphans = [int(path.name.partition("-")[2]) for path in stage.folder.glob("orphan-*")]
    (supervisor,) = stage.supervisors()
    until(lambda: all(parent(pid) == supervisor for pid in orphans), 5, "taken in")
    told = ask(process.pid)
    assert ": 3 replicas," in told.stdout
    assert "in orphan" not in told.stdout
    assert ask(orphans[0]).stdout.startswith(f"launch of process {process.pid}:")
    ends_well(stage, process)


def test_where_nothing_runs_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside.launches, "launches", list)  # others may launch here meanwhile
    with pytest.raises(XmpError, match=r"^no launch of yours is running here$"):
        outside.find(None)
    with pytest.raises(XmpError, match=rf"^process {os.getpid()} is no .*; no launch of yours"):
        outside.find(os.getpid())


def test_a_process_without_a_launch_is_refused() -> None:
    told = ask(os.getpid())
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith(
        f"xmp: process {os.getpid()} is no launcher, supervisor or replica of a running launch;"
    )
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert ask(gone.pid).stderr.startswith(f"xmp: there is no process {gone.pid};")


@pytest.mark.root
def test_a_process_of_another_user_is_refused() -> None:
    with subprocess.Popen(["sleep", "60"], user=65534) as other:
        told = ask(other.pid)
        other.kill()
    assert told.returncode == 1
    assert told.stderr.startswith(f"xmp: process {other.pid} belongs to nobody: only that user")


# --- Ctrl-\ ------------------------------------------------------------------------------------


def said(stage: Stage, text: str, times: int = 1) -> bool:
    name = stage.last.script.name  # type: ignore[attr-defined]
    return Path(stage.folder, f"{name}.err").read_text().count(text) >= times


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_backslash_tells_and_goes_on(terminal: Terminal, stage: Stage, method: str) -> None:
    process = terminal.start("waiting", method, "5", source=HEAD)
    until(lambda: handles(process.pid, signal.SIGQUIT), 10, "the launcher waits")
    until(lambda: {state(pid) for pid in stage.replicas()} == {"S"}, 10, "replicas sleep")
    before = stage.alive()
    for times in (1, 2):
        terminal.press(CTRL_BACKSLASH)
        until(lambda times=times: said(stage, "\nranks 0-2:\n", times), 20, "the stacks")
    assert said(stage, "xmp: where the living replicas are:", 2)
    assert said(stage, "in waiting", 2)
    assert before.keys() <= stage.alive().keys()
    terminal.press(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    stage.gone()


@pytest.mark.parametrize("whose", ["handler", "faulthandler"])
def test_a_handler_of_the_users_own_stays(stage: Stage, whose: str) -> None:
    process = stage.start(SOURCE, "forkserver", whose)
    own = stage.folder / "own"
    until(lambda: all((stage.folder / f"in-fn-{rank}").exists() for rank in range(3)), 30, "in fn")
    process.send_signal(signal.SIGQUIT)
    until(lambda: own.exists() and (whose == "handler" or own.stat().st_size > 0), 5, "its own")
    ends_well(stage, process)
    assert not said(stage, "where the living replicas are")


def test_before_there_are_replicas_it_tells_what_is_waited_for(stage: Stage) -> None:
    slow = """
        import os, time
        import xmp

        if __name__ != "__main__":
            open("importing", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.02)

        def fn(rank):
            return rank

        if __name__ == "__main__":
            print(list(xmp.spawn(fn, nprocs=3, runtime="cpu")))
    """
    process = stage.start(slow)
    until((stage.folder / "importing").exists, 30, "import")
    until(lambda: handles(process.pid, signal.SIGQUIT), 10, "the launcher waits")
    process.send_signal(signal.SIGQUIT)
    until(lambda: said(stage, "xmp: no replica exists yet: "), 5, "what is waited for")
    assert said(stage, f"{stage.last.script} is being imported")  # type: ignore[attr-defined]
    ends_well(stage, process)
