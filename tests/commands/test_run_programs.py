"""``xmp run``: standard input, programs without Python, time limits, interrupts."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.commands.test_run import run
from tests.support.stage import PACKAGE, Stage
from tests.support.terminal import Terminal
from tests.support.waiting import until

# --- standard input and other programs -----------------------------------------------------------

READS = """
import os, sys
if os.isatty(0):
    print("with", os.isatty(1), flush=True)
    print(input("name? ").upper(), flush=True)
else:
    print(repr(sys.stdin.read()), flush=True)
"""


@pytest.mark.parametrize("options", [(), ("--timeout", "60")], ids=str)
def test_a_single_script_keeps_the_terminal(
    stage: Stage, terminal: Terminal, options: tuple[str, ...]
) -> None:
    stage.write(READS, "reads.py")
    terminal.start_command(sys.executable, "-m", "xmp", "run", "-n", "1", *options, "reads.py")
    assert "with True" in terminal.answer("name? ", "ada")
    terminal.see("ADA")


@pytest.mark.parametrize("options", [("-n", "1"), ("-n", "1", "--timeout", "60")], ids=str)
def test_a_single_script_reads_standard_input(stage: Stage, options: tuple[str, ...]) -> None:
    stage.write(READS, "reads.py")
    assert run(stage, *options, "reads.py", stdin="two\nlines\n").out == "'two\\nlines\\n'\n"


def test_several_scripts_read_nothing(stage: Stage) -> None:
    stage.write(READS, "reads.py")
    assert run(stage, "-n", "2", "reads.py", stdin="two\n").out == "''\n''\n"


@pytest.mark.failing
@pytest.mark.parametrize("count", ["1", "2"])
def test_any_program_runs_with_the_same_variables(stage: Stage, count: str) -> None:
    shell = ("--no-python", "sh", "-c")
    done = run(stage, "-n", count, *shell, 'echo "$RANK of $WORLD_SIZE $1"; exit $RANK', "sh", "x")
    assert sorted(done.out.splitlines()) == [f"{r} of {count} x" for r in range(int(count))]
    assert done.code == int(count) - 1, done.err
    assert "exit code 0" not in done.err


@pytest.mark.failing
def test_a_program_that_fails_is_not_said_to_have_left_xmp(stage: Stage) -> None:
    """Although exec has closed the replica's connection long before."""
    fails = ("-c", "import sys; sys.exit(4)")
    done = run(stage, "-n", "2", "--no-python", sys.executable, *fails)
    assert done.code == 4
    assert " ended with exit code 4" in done.err.partition("\n")[0], done.err
    assert "connection" not in done.err


def test_a_program_has_the_signals_of_a_program(stage: Stage) -> None:
    """And the one by which xmp asks for stacks does not end it."""
    stage.write("echo up $RANK\ntouch in-fn-$RANK\nread nothing < fifo\n", "wait.sh")
    os.mkfifo(stage.folder / "fifo")
    fifo = os.open(stage.folder / "fifo", os.O_RDWR)  # a shell may open it at any time
    launcher = stage.start_command(
        sys.executable, "-m", "xmp", "run", "-n", "2", "--no-python", "sh", "wait.sh"
    )
    stage.in_function(launcher, 2)
    os.kill(launcher.pid, signal.SIGQUIT)  # it asks for stacks, which a shell does not have
    shells = stage.named("sh")
    assert len(shells) == 2, stage.alive()
    masks = {ignored(pid) & (1 << signal.SIGPIPE - 1) for pid in shells}
    assert masks == {0}
    os.write(fifo, b"\n\n")
    assert stage.outcome(launcher).code == 0
    os.close(fifo)


def ignored(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("SigIgn"))
    return int(line.split()[1], 16)


@pytest.mark.failing
def test_a_program_ends_with_a_launcher_that_is_killed(stage: Stage) -> None:
    stage.write("touch in-fn-$RANK\nexec sleep 60\n", "wait.sh")
    launcher = stage.start_command(
        sys.executable, "-m", "xmp", "run", "-n", "2", "--no-python", "sh", "wait.sh"
    )
    stage.in_function(launcher, 2)
    until(lambda: len(stage.named("sleep")) == 2, 10, stage.alive)
    launcher.kill()
    launcher.wait()
    stage.gone()


# --- limits, events, Ctrl-C -----------------------------------------------------------------------

WAITS = """
import os
import in_script
open(f"in-fn-{os.environ['RANK']}", "w").close()
in_script.never_returns()
"""


@pytest.mark.failing
def test_a_time_limit_ends_it_with_the_status_of_timeout(stage: Stage) -> None:
    stage.write(WAITS, "waits.py")
    done = run(stage, "-n", "2", "--timeout", "2", "--grace", "0.5", "waits.py")
    assert done.code == 124
    assert "timeout=2" in done.err
    assert "waits.py" in done.err


def test_events_are_written(stage: Stage) -> None:
    stage.write("", "nothing.py")
    run(stage, "-n", "2", "--events", "events.jsonl", "nothing.py")
    lines = (stage.folder / "events.jsonl").read_text().splitlines()
    names = [json.loads(line)["name"] for line in lines]
    assert names[0] == "planned"
    assert names.count("returned") == 2


@pytest.mark.failing
@pytest.mark.parametrize(
    ("number", "count"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 2)]
)
def test_the_status_after_an_interrupt(stage: Stage, count: int, number: signal.Signals) -> None:
    stage.write(WAITS, "waits.py")
    with open(stage.folder / "err", "w") as err:
        launcher = stage.start_command(
            sys.executable, "-m", "xmp", "run", "-n", str(count), "waits.py", stderr=err
        )
    stage.in_function(launcher, count)
    pids = stage.named(*(f"xmp-replica-{rank}" for rank in range(count))) or [launcher.pid]
    until(lambda: all(psutil.Process(pid).status() == "sleeping" for pid in pids), 10, "all wait")
    launcher.send_signal(number)
    code = stage.outcome(launcher).code
    stage.gone()
    text = (stage.folder / "err").read_text()
    if number == signal.SIGINT:
        assert code == 130, text
        assert text.count("waits.py") == 1
        assert "runpy" not in text
        assert f"{PACKAGE}/" not in text
    else:
        assert code == -signal.SIGTERM, text
