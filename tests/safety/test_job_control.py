"""A launch is one job of a shell, at a breakpoint and without: Ctrl-Z, ``fg``, ``&``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from debugged import HEAD, PROMPT, noted
from in_script import signals, state
from screens import CTRL_Z, Screen
from stages import until


def shell(screen: Screen) -> subprocess.Popen[str]:
    process = screen.run("bash", "--norc", "--noprofile", "-i")
    screen.type("PS1='shell''> '\n")
    screen.see("shell> ")
    return process


def command(screen: Screen, fn: str, **options: Any) -> str:
    script = screen.stage.write(HEAD, "job.py")
    return f"{sys.executable} {script} '{json.dumps({'fn': fn, **options})}'"


def bring_to_front(screen: Screen, process: subprocess.Popen[str]) -> None:
    screen.answer("shell> ", "fg")
    until(lambda: screen.foreground() != process.pid, 10, "the job in front")


def ended_well(screen: Screen, process: subprocess.Popen[str]) -> None:
    """The job has its results, and the shell is left."""
    screen.see("shell> ")
    told = json.loads((screen.stage.folder / "ended").read_text())
    assert told["ended"] == [0, 1, 2, 3]
    screen.type("exit\n")
    assert process.wait(10) is not None
    screen.stage.gone()


def test_ctrl_z_at_the_prompt_stops_the_job(screen: Screen) -> None:
    """The shell has the terminal, with its own modes, until ``fg``."""
    process = shell(screen)
    screen.type(command(screen, "waiting") + "\n")
    for _ in range(2):
        screen.see(PROMPT.format(2))
        screen.type(CTRL_Z)
        screen.see("Stopped")
        screen.answer("shell> ", "echo it is $((6 * 7))")
        screen.see("it is 42")
        bring_to_front(screen, process)
        screen.type("p 50 + 5\n")
        screen.see("55")
    screen.answer(PROMPT.format(2), "c")
    ended_well(screen, process)


def test_a_background_job_stops_until_it_is_in_front(screen: Screen) -> None:
    process = shell(screen)
    screen.type(command(screen, "waiting") + " &\n")
    screen.see("fg brings us there")
    for _ in range(20):  # the line comes just before
        screen.type("jobs\n")
        if screen.sees("Stopped", 0.5) is not None:
            break
    bring_to_front(screen, process)
    screen.answer(PROMPT.format(2), "p 50 + 5")
    screen.see("55")
    screen.answer(PROMPT.format(2), "c")
    ended_well(screen, process)


def test_ctrl_z_without_a_debugger(screen: Screen) -> None:
    """The replicas stop with their launcher and go on with it."""
    process = shell(screen)
    screen.type(command(screen, "counting") + "\n")
    until(lambda: len(noted(screen, "pid")) == 4, 30, "replicas")
    pids = [int(name[4:]) for name in noted(screen, "pid")]
    until(
        lambda: signal.SIGTSTP in signals(screen.foreground(), "SigCgt"), 10, "the launcher waits"
    )
    screen.type(CTRL_Z)
    screen.see("Stopped")
    until(lambda: {state(pid) for pid in pids} == {"T"}, 5, "replicas stopped")
    bring_to_front(screen, process)
    until(lambda: "T" not in {state(pid) for pid in pids}, 5, "replicas go on")
    (screen.stage.folder / "release").touch()
    ended_well(screen, process)
