"""A launch is one job of a shell, at a breakpoint and without: Ctrl-Z, ``fg``, ``&``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.support.breakpoint_program import HEAD, PROMPT, noted
from tests.support.in_script import signals, state
from tests.support.terminal import CTRL_Z, Terminal
from tests.support.waiting import until

pytestmark = pytest.mark.failing


def shell(terminal: Terminal) -> subprocess.Popen[str]:
    process = terminal.start_command("bash", "--norc", "--noprofile", "-i")
    terminal.type("PS1='shell''> '\n")
    terminal.see("shell> ")
    return process


def command(terminal: Terminal, fn: str, **options: Any) -> str:
    script = terminal.stage.write(HEAD, "job.py")
    return f"{sys.executable} {script} '{json.dumps({'fn': fn, **options})}'"


def bring_to_front(terminal: Terminal, process: subprocess.Popen[str]) -> None:
    terminal.answer("shell> ", "fg")
    until(lambda: terminal.foreground() != process.pid, 10, "the job in front")


def ended_well(terminal: Terminal, process: subprocess.Popen[str]) -> None:
    """The job has its results, and the shell is left."""
    terminal.see("shell> ")
    found = json.loads((terminal.stage.folder / "ended").read_text())
    assert found["ended"] == [0, 1, 2, 3]
    terminal.type("exit\n")
    assert process.wait(10) is not None
    terminal.stage.gone()


def test_ctrl_z_at_the_prompt_stops_the_job(terminal: Terminal) -> None:
    """The shell has the terminal, with its own modes, until ``fg``."""
    process = shell(terminal)
    terminal.type(command(terminal, "waiting") + "\n")
    for _ in range(2):
        terminal.see(PROMPT.format(2))
        terminal.type(CTRL_Z)
        terminal.see("Stopped")
        terminal.answer("shell> ", "echo it is $((6 * 7))")
        terminal.see("it is 42")
        bring_to_front(terminal, process)
        terminal.type("p 50 + 5\n")
        terminal.see("55")
    terminal.answer(PROMPT.format(2), "c")
    ended_well(terminal, process)


def test_a_background_job_stops_until_it_is_in_front(terminal: Terminal) -> None:
    process = shell(terminal)
    terminal.type(command(terminal, "waiting") + " &\n")
    terminal.see("bring this job to the terminal's foreground (fg)")
    for _ in range(20):  # the line comes just before
        terminal.type("jobs\n")
        if terminal.sees("Stopped", 0.5) is not None:
            break
    bring_to_front(terminal, process)
    terminal.answer(PROMPT.format(2), "p 50 + 5")
    terminal.see("55")
    terminal.answer(PROMPT.format(2), "c")
    ended_well(terminal, process)


def test_ctrl_z_without_a_debugger(terminal: Terminal) -> None:
    """The replicas stop with their launcher and go on with it."""
    process = shell(terminal)
    terminal.type(command(terminal, "counting") + "\n")
    until(lambda: len(noted(terminal, "pid")) == 4, 30, "replicas")
    pids = [int(name[4:]) for name in noted(terminal, "pid")]
    until(
        lambda: signal.SIGTSTP in signals(terminal.foreground(), "SigCgt"), 10, "the launcher waits"
    )
    terminal.type(CTRL_Z)
    terminal.see("Stopped")
    until(lambda: {state(pid) for pid in pids} == {"T"}, 5, "replicas stopped")
    bring_to_front(terminal, process)
    until(lambda: "T" not in {state(pid) for pid in pids}, 5, "replicas go on")
    (terminal.stage.folder / "release").touch()
    ended_well(terminal, process)
