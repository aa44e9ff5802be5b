"""``progress=``: in which phase the replicas are, without losing a byte of their output."""

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

import xmp
from tests.support.stage import Script
from tests.support.terminal import on_a_terminal

pytestmark = pytest.mark.failing

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
    print("after the launch", flush=True)
"""
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:  # its own job: the kernel stops no group without a parent to continue it
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
STATUS = re.compile(r" *xmp: \d+\.\d s: .*")
OUTPUT = [f"out {line} of a replica" for line in range(40)]


terminal = partial(on_a_terminal, source=PROGRAM)


def test_output_comes_through_while_the_phases_are_shown(method: str, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    with terminal(tmp_path, method, "True", "3", str(flag), columns=200) as there:
        there.wait(lambda: there.shows(r"^begun,"))
        there.wait(
            lambda: there.shows(
                r"^ +xmp: \d+\.\d s: 1 (starting|importing|joining) \(rank 1\), "
                r"(1 running, 1 done|2 running)$"
            )
        )
        assert "xmp: " in there.rows()[there.screen.cursor.y + 1], "below where replicas write"
        flag.touch()
        assert there.end() == 0
    rows = [STATUS.sub("", row) for row in there.text()]
    # Standard error takes its own way and comes before, in or after that line.
    text = "\n".join(rows).replace("err of a replica\n", "", 1).splitlines()
    assert "err of a replica" in "\n".join(rows)
    assert text == ["before the launch", *OUTPUT, "begun, ended", "after the launch"]
    assert there.whole


def test_a_start_that_takes_long_is_shown(method: str, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    began = time.monotonic()
    with terminal(tmp_path, method, "None", "2", str(flag), columns=200) as there:
        there.wait(
            lambda: there.shows(r"xmp: \d\.\d s: 1 (starting|importing|joining) \(rank 1\), ")
        )
        assert time.monotonic() - began >= 2
        flag.touch()
        assert there.end() == 0
    assert there.text()[-1] == "after the launch"
    assert there.whole


def with_patience(seconds: float) -> str:
    """The program where a start takes long after that many seconds."""
    begin = 'if __name__ == "__main__":\n'
    patient = f"{begin}    import xmp._processes.terminal.progress as p; p._PATIENCE = {seconds}\n"
    return PROGRAM.replace(begin, patient)


def test_a_start_that_is_quick_is_not(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    flag.touch()
    source = with_patience(30.0)  # on a busy host "quick" is longer
    with terminal(tmp_path, "forkserver", "None", "2", str(flag), source=source) as there:
        assert there.end() == 0
    assert b"\x1b" not in there.raw


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


def test_ranks_that_the_others_wait_for_are_named(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    with terminal(tmp_path, "forkserver", "True", "20", str(flag)) as there:
        there.wait(lambda: there.shows(r"s: 1 starting \(rank 1\), 1 running, 18 done$"))
        flag.touch()
        assert there.end() == 0
    assert there.text()[-1] == "after the launch"


def test_a_launch_that_fails_meanwhile_erases_the_line(tmp_path: Path) -> None:
    with terminal(tmp_path, "forkserver", "True", "2", str(tmp_path / "no"), "fail") as there:
        assert there.end() == 1
    assert "xmp.ReplicaRaised: rank 0 of 2 (cpu, pid " in "\n".join(there.text())
    assert not there.shows("starting")


def test_ctrl_c_while_the_phases_are_shown(tmp_path: Path) -> None:
    with terminal(tmp_path, "forkserver", "True", "2", str(tmp_path / "no")) as there:
        there.wait(lambda: there.shows("1 starting .rank 1"))
        os.write(there.master, b"\x03")
        assert there.end() in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in "\n".join(there.text())
    assert not there.shows("1 starting .rank 1")


def test_before_there_are_replicas(tmp_path: Path) -> None:
    source = with_patience(0.5).replace(
        "import xmp", "import signal, xmp\nif __name__ != '__main__': signal.pause()", 1
    )
    there_not = str(tmp_path / "no")
    with terminal(
        tmp_path, "forkserver", "None", "4", there_not, columns=200, source=source
    ) as there:
        there.wait(
            lambda: there.shows(r"^ +xmp: \d\.\d s: 4 importing \(.*train.py is being imported\)$")
        )
        os.write(there.master, b"\x03")
        assert there.end() in (1, -signal.SIGINT)
    assert not there.shows("4 importing")


def test_ctrl_z_while_the_phases_are_shown(tmp_path: Path) -> None:
    flag = tmp_path / "go"
    with terminal(tmp_path, "forkserver", "True", "2", str(flag), shell=SHELL) as there:
        there.wait(lambda: there.shows("1 starting .rank 1"))
        (launcher,) = psutil.Process(there.process.pid).children()
        os.write(there.master, b"\x1a")
        there.wait(lambda: launcher.status() == "stopped")
        while select.select([there.master], [], [], 0.1)[0]:
            there.read(0)
        assert not there.shows("1 starting .rank 1")
        launcher.send_signal(signal.SIGCONT)
        there.wait(lambda: there.shows("1 starting .rank 1"))
        flag.touch()
        assert there.end() == 0


def test_a_launcher_that_is_killed_leaves_the_cursor_where_output_goes_on(tmp_path: Path) -> None:
    with terminal(tmp_path, "forkserver", "True", "2", str(tmp_path / "no")) as there:
        there.wait(lambda: there.shows("1 starting .rank 1") and there.shows("^begun,"))
        there.process.kill()
        there.end()
    row = there.screen.cursor.y
    assert "1 starting" not in there.rows()[row]
    assert "begun," in "".join(there.rows()[row - 1 : row + 1])  # standard error has its own way
    assert there.whole


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
        assert not there.shows("1 starting .rank 1")
        os.write(there.master, b"\n")
        assert there.end() == 0


# --- the status line ---------------------------------------------------------------------------

WRITER = """
import os, sys
from xmp._os import log
from xmp._processes.terminal import status_line

def write(text):
    os.write(1, text.encode())

assert status_line.possible()
for number in range(40):
    assert status_line.draw("a status")
    write(f"begun {number},")
    assert status_line.draw("a status")
    write(f" ended {number}\\n")
status_line.draw("a status")
write("first\\nsecond\\nthird\\n")
status_line.draw("a very long status" * 3)
sys.stdin.readline()
log.say("said\\nby the launcher")
"""


def test_what_is_written_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    with terminal(tmp_path, source=WRITER, columns=40) as there:
        there.wait(lambda: there.shows("^a very long status"))
        assert there.rows()[there.screen.cursor.y + 1] == ("a very long status" * 3)[:39]
        os.write(there.master, b"typed\n")
        assert there.end() == 0
    assert there.text() == [
        *(f"begun {number}, ended {number}" for number in range(40)),
        "first",
        f"second{'a status':>33}",  # between two drawings it is where the status line was
        "third",
        "typed",
        "said",
        "by the launcher",
    ]


@pytest.mark.parametrize("where", ["dumb", "file", "background"])
def test_where_no_line_can_be_redrawn(where: str, tmp_path: Path) -> None:
    source = """
import os, sys
if "dumb" in sys.argv: os.environ["TERM"] = "dumb"
if "file" in sys.argv: os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
if "background" in sys.argv:
    if os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
    os.setpgid(0, 0)
from xmp._processes.terminal import status_line
print(status_line.possible(), status_line.draw("a status"))
status_line.erase()
"""
    with terminal(tmp_path, where, source=source) as there:
        assert there.end() == 0
    assert there.text() == ["False False"]
    assert b"\x1b" not in there.raw


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


def test_lines_name_the_ranks_that_are_waited_for(script: Script, tmp_path: Path) -> None:
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
