"""``progress=``: where each replica is, live, without a byte of anybody's output out of place."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from _behaviour import Script
from terminals import terminal as on_a_terminal

import xmp
from xmp._processes.board import drawn

PROGRAM = """
import multiprocessing.util, os, sys, time
import xmp

method, asked, nprocs, flag = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def late(_=None):
    if os.environ.get("RANK") == "1":  # in a replica, before it joins
        while not os.path.exists(flag):
            time.sleep(0.01)

multiprocessing.util.register_after_fork(late, late)
if __name__ != "__main__":
    late()

def fn(rank, flag):
    if rank == 0:
        for line in range(40):
            print(f"out {line} of a replica", flush=True)
        sys.stderr.write("err of a replica\\n")
        sys.stdout.write("begun,")
        sys.stdout.flush()
        while not os.path.exists(flag):
            time.sleep(0.01)
        print(" ended", flush=True)

def before(rank, flag):
    raise ValueError("at once")

if __name__ == "__main__":
    print("before the launch")
    xmp.spawn(before if "fail" in sys.argv else fn, (flag,), nprocs=nprocs, runtime="cpu",
              start_method=method, progress=asked)
    print("after the launch", "rich" in sys.modules, flush=True)
"""
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:  # a job of its own: what has no parent to continue it is not stopped
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
OUTPUT = [f"out {line} of a replica" for line in range(40)]


terminal = partial(on_a_terminal, source=PROGRAM)


def test_output_comes_through_while_the_phases_are_shown(method: str, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    with terminal(tmp_path, method, "True", "3", str(flag)) as there:
        there.wait(lambda: there.shows(r"^  rank 1  (starting|importing|joining) +\d+\.\d s  pid"))
        there.wait(lambda: there.shows(r"^  rank 0  running"))
        there.wait(lambda: there.shows(r"^begun,"))
        there.wait(lambda: there.shows(r"^xmp: \d+\.\d s: 1 \w+, (1 running, 1 done|2 running)"))
        assert not there.whole
        flag.touch()
        assert there.end() == 0
    # Standard error takes its own way and comes before, in or after that line.
    text = "\n".join(there.text()).replace("err of a replica\n", "", 1).splitlines()
    assert "err of a replica" in "\n".join(there.text())
    assert [row for row in text if row.startswith("out ")] == OUTPUT
    assert "begun, ended" in text
    assert text[0] == "before the launch"
    assert text[-1] == "after the launch True"
    assert not [
        row for row in text if "rank" in row or (row.startswith("xmp: ") and "start" not in row)
    ]
    assert there.whole


def test_a_start_that_takes_long_is_shown(method: str, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    began = time.monotonic()
    with terminal(tmp_path, method, "None", "2", str(flag)) as there:
        there.wait(lambda: there.shows(r"^  rank 1  (starting|importing|joining) "))
        assert time.monotonic() - began >= 2
        flag.touch()
        assert there.end() == 0
    assert there.text()[-1] == "after the launch True"
    assert there.whole


def with_patience(seconds: float) -> str:
    """The program where a start takes long after that many seconds."""
    begin = 'if __name__ == "__main__":\n'
    patient = f"{begin}    import xmp._processes.progress as p; p._PATIENCE = {seconds}\n"
    return PROGRAM.replace(begin, patient)


@pytest.mark.parametrize("asked", ["None", "False"])
def test_a_start_that_is_quick_is_not(asked: str, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    flag.touch()
    source = with_patience(30.0)  # on a busy host "quick" is longer
    with terminal(tmp_path, "forkserver", asked, "2", str(flag), source=source) as there:
        assert there.end() == 0
    assert b"\x1b" not in there.raw
    assert there.text()[-1] == "after the launch False"


@pytest.mark.parametrize(("asked", "shown"), [("None", True), ("False", False)])
def test_false_is_never(asked: str, shown: bool, tmp_path: Path) -> None:
    """Where any start takes too long for ``None``."""
    flag = tmp_path / "go"
    source = with_patience(0.0)
    with terminal(tmp_path, "forkserver", asked, "2", str(flag), source=source) as there:
        there.wait(lambda: there.shows("begun,"))
        flag.touch()
        assert there.end() == 0
    assert (b"\x1b" in there.raw) is shown


def test_many_replicas_are_told_by_phase(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    with terminal(tmp_path, "forkserver", "True", "20", str(flag)) as there:
        there.wait(lambda: there.shows(r"^  1 +starting  rank 1  \d+\.\d s"))
        there.wait(lambda: there.shows(r"^  18 +done +ranks "))
        flag.touch()
        assert there.end() == 0
    assert there.text()[-1] == "after the launch True"


def test_a_launch_that_fails_meanwhile_leaves_the_terminal_whole(tmp_path: Path) -> None:
    with terminal(tmp_path, "forkserver", "True", "2", str(tmp_path / "no"), "fail") as there:
        assert there.end() == 1
    assert there.whole
    assert "xmp.ReplicaRaised: rank 0 of 2 (cpu, pid " in "\n".join(there.text())
    assert not there.shows("starting")


def test_ctrl_c_while_the_phases_are_shown(tmp_path: Path) -> None:
    with terminal(tmp_path, "forkserver", "True", "2", str(tmp_path / "no")) as there:
        there.wait(lambda: there.shows("rank 1  starting"))
        os.write(there.master, b"\x03")
        assert there.end() in (1, -signal.SIGINT)
    assert there.whole
    assert "KeyboardInterrupt" in "\n".join(there.text())
    assert not there.shows("rank 1  starting")


def test_before_there_are_replicas(tmp_path: Path) -> None:
    source = PROGRAM.replace(
        "import xmp", "import signal, xmp\nif __name__ != '__main__': signal.pause()", 1
    )
    there_not = str(tmp_path / "no")
    with terminal(
        tmp_path, "forkserver", "None", "4", there_not, columns=200, source=source
    ) as there:
        there.wait(
            lambda: there.shows(r"^xmp: 2\.\d s: 4 importing \(.*train.py is being imported\)$")
        )
        os.write(there.master, b"\x03")
        assert there.end() in (1, -signal.SIGINT)
    assert there.whole
    assert not there.shows("importing")


def test_ctrl_z_while_the_phases_are_shown(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    with terminal(tmp_path, "forkserver", "True", "2", str(flag), shell=SHELL) as there:
        there.wait(lambda: there.shows("rank 1  starting"))
        (launcher,) = psutil.Process(there.process.pid).children()
        os.write(there.master, b"\x1a")
        there.wait(lambda: launcher.status() == "stopped")
        while select.select([there.master], [], [], 0.1)[0]:
            there.read(0)
        assert there.whole
        assert not there.shows("starting")
        launcher.send_signal(signal.SIGCONT)
        there.wait(lambda: there.shows("rank 1  starting"))
        flag.touch()
        assert there.end() == 0
    assert there.whole


def test_a_launcher_that_is_killed_leaves_a_terminal_that_scrolls(tmp_path: Path) -> None:
    with terminal(tmp_path, "forkserver", "True", "2", str(tmp_path / "no")) as there:
        there.wait(lambda: there.shows("rank 1  starting"))
        assert not there.whole
        there.process.kill()
        there.wait(lambda: there.whole)


def test_without_a_join_the_terminal_is_the_programs(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    source = PROGRAM.replace("progress=asked)", "progress=asked, join=False)").replace(
        '    print("after',
        '    print("meanwhile", flush=True); input()\n    print("after',
    )
    source = source.replace("    xmp.spawn(", "    context = xmp.spawn(")
    source = source.replace("input()", "input(); open(flag, 'w').close(); context.join()")
    with terminal(tmp_path, "forkserver", "True", "2", str(flag), source=source) as there:
        there.wait(lambda: "meanwhile" in "".join(there.text()))
        there.wait(lambda: "begun," in "".join(there.text()))
        assert there.whole
        os.write(there.master, b"\n")
        assert there.end() == 0
    assert there.whole


# --- plain lines -------------------------------------------------------------------------------


def test_elsewhere_there_are_plain_lines(method: str, script: Script, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    flag.touch()
    done = script(PROGRAM, method, "True", "3", str(flag))
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if line.startswith("xmp: ")]
    assert all(re.match(r"xmp: \d+\.\d s: \d \w+", line) for line in lines), done.err
    assert re.fullmatch(r"xmp: \d+\.\d s: (3|2|1) (running|done)(, \d done)?", lines[-1])
    assert len(lines) <= done.seconds + 2, "one a second, and the last"
    assert len(set(lines)) == len(lines)
    assert "\x1b" not in done.err
    assert done.out.splitlines()[-1] == "after the launch False"


def test_lines_name_who_is_waited_for(script: Script, tmp_path: Path) -> None:
    source = PROGRAM.replace("def fn(", "import threading\ndef fn(").replace(
        'print("before the launch")',
        'threading.Timer(2.5, lambda: open(flag, "w").close()).start()',
    )
    done = script(source, "forkserver", "True", "3", str(tmp_path / "go"))
    assert done.code == 0, done.err
    assert re.search(r"^xmp: \d\.\d s: 1 starting \(rank 1\), ", done.err, re.MULTILINE), done.err


def test_elsewhere_nothing_comes_by_itself(script: Script, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    flag.touch()
    assert "xmp:" not in script(PROGRAM, "forkserver", "None", "2", str(flag)).err


def test_a_notebook_is_no_terminal(tmp_path: Path) -> None:
    """Its standard error has a terminal's descriptor, where its server was started from one."""
    flag = tmp_path / "go"
    flag.touch()
    begin = 'if __name__ == "__main__":\n'
    source = PROGRAM.replace(
        begin,
        f"{begin}    import io\n"
        "    class Cell(io.TextIOWrapper):\n"
        "        def isatty(self): return False\n"
        "    sys.stderr = Cell(open(os.dup(2), 'wb', buffering=0), write_through=True)\n",
    )
    with terminal(tmp_path, "forkserver", "True", "2", str(flag), source=source) as there:
        assert there.end() == 0
    assert b"\x1b" not in there.raw
    assert any(re.match(r"xmp: \d\.\d s: 2 \w+", row) for row in there.text())


def test_one_replica_in_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    xmp.spawn(lambda rank: None, nprocs=1, runtime="cpu", progress=True)
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"xmp: \d\.\d s: 1 joining", first)
    assert re.fullmatch(r"xmp: \d\.\d s: 1 running", second)


# --- how it looks ------------------------------------------------------------------------------


def plain(lines: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines]


def test_a_line_for_each_replica() -> None:
    phases = {0: ("running", 0.5), 1: ("joining", 12.25)}
    assert plain(drawn("title", phases, {0: "pid 7"}, (60, 10))) == [
        "title",
        "  rank 0  running  0.5 s   pid 7",
        "  rank 1  joining  12.2 s",
    ]


def test_where_there_is_no_room_for_that() -> None:
    phases = {rank: ("joining" if rank % 2 else "running", float(rank)) for rank in range(40)}
    for size in ((60, 60), (60, 3)):
        assert plain(drawn("title", phases, {}, size)) == [
            "title",
            "  20  joining  ranks 29, 31, 33, 35, 37, 39, …  39.0 s",
            "  20  running  ranks 28, 30, 32, 34, 36, 38, …  38.0 s",
        ]


def test_no_line_is_wider_than_the_terminal() -> None:
    lines = plain(drawn("t" * 100, {0: ("running", 0.5)}, {0: "n" * 100}, (30, 10)))
    assert max(map(len, lines)) <= 30
    assert len(lines) == 2
