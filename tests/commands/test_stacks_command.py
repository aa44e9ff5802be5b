"""`xmp stacks` and Ctrl-\\: where the replicas are, while they and the launcher go on."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guide import shown_json
from tests.support.in_script import parent, state
from tests.support.interrupt_program import handles, started
from tests.support.launching import METHODS
from tests.support.stage import Stage
from tests.support.terminal import CTRL_BACKSLASH, CTRL_C, Terminal
from tests.support.waiting import until
from xmp._commands import stacks
from xmp._words.errors import XmpError

pytestmark = pytest.mark.failing

SOURCE = """
    import ctypes, faulthandler, os, signal, sys, time
    import in_script, xmp

    def load_batch(name):
        sleep = ctypes.PyDLL(None).usleep
        open(name, "w").close()
        while not os.path.exists("go"):
            sleep(100_000)

    def reduce_all(name):  # the name of a collective would have torch imported for it
        open(name, "w").close()
        while not os.access("go", os.F_OK): time.sleep(0.02)  # one line: it is in every stack

    def fn(rank):
        (load_batch if rank == 1 else reduce_all)(f"in-fn-{rank}")
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


def ask(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "xmp", "stacks", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, **options
    )  # type: ignore[call-overload, no-any-return]


def start(stage: Stage, method: str) -> subprocess.Popen[str]:
    process = stage.start(SOURCE, method)
    stage.in_function(process)
    until(lambda: {state(pid) for pid in stage.replicas()} == {"S"}, 10, "replicas sleep")
    return process


def ends_well(stage: Stage, process: subprocess.Popen[str]) -> None:
    (stage.folder / "go").touch()
    outcome = stage.outcome(process)
    assert (outcome.code, outcome.out.strip()) == (0, "[0, 1, 2]"), outcome
    stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_identical_stacks_are_shown_once(stage: Stage, method: str) -> None:
    process = start(stage, method)
    (supervisor,) = stage.supervisors()
    answer = ask(process.pid)
    assert answer.returncode == 0, answer
    reports = [answer.stdout]
    for pid in (supervisor, *stage.replicas()):  # as the command does, in this process
        [launch] = stacks.find(pid)
        reports.append(stacks.report(launch))
    for report in reports:
        head, *lines = report.splitlines()
        assert head == f"launch of process {process.pid}: 3 replicas, supervisor {supervisor}"
        user, script = pwd.getpwuid(os.geteuid()).pw_name, process.script  # type: ignore[attr-defined]
        assert str(script)[-60:] in lines[0]
        assert f", user {user}, running for " in lines[0]
        assert lines[0].endswith(", runtime cpu, running")
        assert "ranks 0, 2:" in lines
        assert "rank 1:" in lines
        assert lines[1].startswith(
            "rank 1 may be waited for, since ranks 0, 2 stand in reduce_all()"
        )
        first, second = "\n".join(lines[2:]).split("rank 1:")
        assert ("in reduce_all" in first, "in load_batch" in first) == (True, False)
        assert ("in reduce_all" in second, "in load_batch" in second) == (False, True)
        assert "_processes" not in report
    ends_well(stage, process)


def test_json_has_what_the_guide_shows_and_few_descriptors_are_enough(stage: Stage) -> None:
    """Hundreds of replicas need no more than three."""
    process = start(stage, "forkserver")
    (supervisor,) = stage.supervisors()
    answer = ask("--json", supervisor)
    assert answer.returncode == 0, answer
    data, shown = json.loads(answer.stdout), shown_json("commands.md", "`xmp stacks --json PID`:")
    (launch,) = data["launches"]
    assert data.keys() == shown.keys()
    assert launch.keys() == shown["launches"][0].keys()
    assert (launch["launcher"], launch["supervisor"]) == (process.pid, supervisor)
    assert {*launch["replicas"]} == {*stage.replicas()}
    assert [*launch["stacks"]] == ["0", "1", "2"]
    assert "in load_batch" in launch["stacks"]["1"]
    assert (launch["suspects"], launch["sure"]) == ([1], False), "there is no collective"
    assert launch["finding"].startswith("rank 1 may be waited for, since ranks 0, 2 stand in reduc")
    command = f"ulimit -S -n 8; exec {sys.executable} -m xmp stacks {process.pid}"
    answer = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=30, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "ranks 0, 2:" in answer.stdout
    ends_well(stage, process)


AT_A_BARRIER = """
    import os, sys, time
    import in_script, xmp

    def load_batch():
        open("in-fn-1", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.02)

    def fn(rank):
        if rank == 1:
            load_batch()
        else:
            open(f"in-fn-{rank}", "w").close()
        xmp.barrier()
        return rank

    if __name__ == "__main__":
        print(list(xmp.spawn(fn, nprocs=3, runtime="cpu", start_method=sys.argv[1])))
"""


@pytest.mark.framework
@pytest.mark.parametrize("method", METHODS)
def test_who_has_not_come(stage: Stage, method: str) -> None:
    process = stage.start(AT_A_BARRIER, method)
    stage.in_function(process)
    expected = re.compile(
        r"rank 1 has not come to the barrier at \S+:\d+, where ranks 0, 2 wait \(\d+ s\): "
        r"it is in load_batch\(\) at \S+:\d+"
    )
    until(lambda: expected.search(ask(process.pid).stdout), 60, "the others wait")
    (launch,) = json.loads(ask("--json", process.pid).stdout)["launches"]
    assert (launch["suspects"], launch["sure"]) == ([1], True)
    ends_well(stage, process)


def test_without_a_pid_there_is_one_launch_or_a_list(stage: Stage) -> None:
    process, second = start(stage, "forkserver"), Stage(stage.folder / "second")
    second.folder.mkdir()
    try:
        other = start(second, "forkserver")
        answer = ask()
        assert answer.returncode == 1
        assert answer.stderr.startswith("xmp: more than one launch is running: give a pid")
        for pid in (process.pid, other.pid):
            assert f"\n  pid {pid}: 3 replicas, supervisor " in answer.stderr
        assert f"launch of process {other.pid}:" in ask(other.pid).stdout
        ends_well(second, other)
    finally:
        second.end()
    ends_well(stage, process)


def test_stopped_processes_hide_no_replica(stage: Stage) -> None:
    process = start(stage, "forkserver")
    stopped = [process.pid, *stage.supervisors(), stage.replicas()[2]]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: all(state(pid) == "T" for pid in stopped), 5, "stopped")
    answer = ask(process.pid)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert answer.returncode == 0, answer
    assert answer.stdout.splitlines()[0].endswith("(stopped)")
    assert "rank 0:" in answer.stdout
    assert "rank 2:\n  no answer: stopped, kernel function" in answer.stdout
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
                in_script.never_returns()
            os._exit(0)

    def own(""",
    )
    source = source.replace("    def fn(rank):\n", "    def fn(rank):\n        orphan()\n")
    process = stage.start(source, "forkserver")
    until(lambda: len(list(stage.folder.glob("orphan-*"))) == 3, 30, "orphans")
    until(lambda: len(list(stage.folder.glob("in-fn-*"))) == 3, 30, "replicas")
    orphans = [int(path.name.partition("-")[2]) for path in stage.folder.glob("orphan-*")]
    (supervisor,) = stage.supervisors()
    until(lambda: all(parent(pid) == supervisor for pid in orphans), 5, "taken in")
    answer = ask(process.pid)
    assert ": 3 replicas," in answer.stdout
    assert "in orphan" not in answer.stdout
    assert ask(orphans[0]).stdout.startswith(f"launch of process {process.pid}:")
    ends_well(stage, process)


def test_where_nothing_runs_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks.launches, "launches", list)  # others may launch here meanwhile
    with pytest.raises(XmpError, match=r"^no launch of yours is running here \[XMP-X01\]$"):
        stacks.find(None)
    with pytest.raises(XmpError, match=rf"^process {os.getpid()} is not a .*; no launch of yours"):
        stacks.find(os.getpid())


def test_a_process_without_a_launch_is_refused() -> None:
    answer = ask(os.getpid())
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(
        f"xmp: process {os.getpid()} is not a launcher, supervisor or replica of a running launch;"
    )
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert ask(gone.pid).stderr.startswith(f"xmp: there is no process {gone.pid};")


@pytest.mark.root
def test_a_process_of_another_user_is_refused() -> None:
    user = pwd.getpwuid(65534)
    with subprocess.Popen(["sleep", "60"], user=user.pw_uid) as other:
        answer = ask(other.pid)
        other.kill()
    assert answer.returncode == 1
    why = f"process {other.pid} belongs to {user.pw_name}: only that user"
    assert answer.stderr.startswith(f"xmp: {why}")


# --- Ctrl-\ ------------------------------------------------------------------------------------


def said(stage: Stage, text: str, times: int = 1) -> bool:
    name = stage.last.script.name  # type: ignore[attr-defined]
    return Path(stage.folder, f"{name}.err").read_text().count(text) >= times


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_backslash_prints_and_goes_on(terminal: Terminal, stage: Stage, method: str) -> None:
    process = started(terminal, "waiting", method, "5")
    until(lambda: handles(process.pid, signal.SIGQUIT), 10, "the launcher waits")
    until(lambda: {state(pid) for pid in stage.replicas()} == {"S"}, 10, "replicas sleep")
    before = stage.alive()
    for times in (1, 2):
        terminal.type(CTRL_BACKSLASH)
        until(lambda times=times: said(stage, "\nranks 0-2:\n", times), 20, "the stacks")
    assert said(stage, "xmp: where the living replicas are:", 2)
    assert said(stage, "in waiting", 2)
    assert before.keys() <= stage.alive().keys()
    terminal.type(CTRL_C)
    outcome = stage.outcome(process)
    assert outcome.said["ended"] == "KeyboardInterrupt"
    stage.gone()


@pytest.mark.parametrize("whose", ["handler", "faulthandler"])
def test_a_handler_of_the_users_own_stays(stage: Stage, whose: str) -> None:
    process = stage.start(SOURCE, "forkserver", whose)
    own = stage.folder / "own"
    stage.in_function(process)
    process.send_signal(signal.SIGQUIT)
    until(lambda: own.exists() and (whose == "handler" or own.stat().st_size > 0), 5, "its own")
    ends_well(stage, process)
    assert not said(stage, "where the living replicas are")


def test_before_there_are_replicas_it_says_what_is_waited_for(stage: Stage) -> None:
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
