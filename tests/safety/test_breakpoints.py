"""Breakpoints in replicas: a real terminal, real keys, a real shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_script import state
from screens import CTRL_C, CTRL_D, CTRL_Z, Screen
from stages import Stage, until

METHODS = ("forkserver", "spawn", "fork")
PROMPT = "(Pdb rank {}) "

HEAD = """
    import json, os, signal, sys, threading, time
    import in_script, xmp

    def note(name):
        with open(name, "a") as file:
            file.write("x")

    def wait_for(name):
        while not os.path.exists(name):
            time.sleep(0.01)

    def named(rank, *who):
        secret = rank * 11
        for one in who:
            xmp.breakpoint(one)
        return secret + 1

    def plain(rank):
        secret = rank * 11
        if rank == 2:
            breakpoint(header="have a look")
        return secret + 1

    def telling(rank):
        if rank == 2:
            note(f"pid-{os.getpid()}")
            for number in range(50):
                sys.stderr.write(f"line {number}\\\\n")
            breakpoint()
            sys.stderr.write("from the step\\\\n")
            number = 0
        return rank

    def waiting(rank):
        '''The others wait as in a collective, where Ctrl-C finds them.'''
        try:
            if rank == 2:
                note(f"pid-{os.getpid()}")
                try:
                    breakpoint()
                    number = 1
                except Exception:
                    note("swallowed")
                note("continued")
            wait_for("continued")
        except KeyboardInterrupt:
            note(f"interrupted-{rank}")
            raise
        finally:
            note(f"finally-{rank}")
        return rank

    def continuing(rank):
        try:
            xmp.breakpoint(2)
            if rank == 2:
                note("continued")
            wait_for("never")
        except KeyboardInterrupt:
            note(f"interrupted-{rank}")
            raise

    def failing(rank):
        if rank == 2:
            breakpoint()
            number = 1
        elif rank == 1:
            wait_for("fail")
            raise ValueError("rank 1 is wrong")
        return rank

    def deaf(rank):
        if rank == 2:
            breakpoint()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            note("deaf"), time.sleep(60)
        wait_for("never")

    def counting(rank):
        note(f"pid-{os.getpid()}")
        wait_for("release")
        return rank

    def input_in_a_step(rank):
        if rank == 2:
            breakpoint()
            name = input("your name? ")
            number = 1
            return name
        return rank

    if os.environ.get("OWN_HOOK"):
        sys.breakpointhook = lambda *args, **named: note("own-hook")

    def launch(fn, args=(), join=True, **options):
        context = xmp.spawn(globals()[fn], args, **{"nprocs": 4, "runtime": "cpu", **options},
                            join=join)
        if join:
            return list(context)
        wait_for("join")
        return list(context.results())

    def main(**call):
        try:
            ended = launch(**call)
        except BaseException as error:
            ended = [type(error).__name__, str(error)[:3000]]
        in_front = os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
        left = in_script.belongings()["processes"]
        handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with open("ended.new", "w") as file:
            json.dump({"ended": ended, "front": in_front, "left": left, "handler": handler}, file)
        os.rename("ended.new", "ended")

    if __name__ == "__main__":
        main(**json.loads(sys.argv[1]))
"""


@pytest.fixture
def screen(stage: Stage) -> Iterator[Screen]:
    screen = Screen(stage)
    yield screen
    screen.close()


def begin(screen: Screen, fn: str, **options: Any) -> subprocess.Popen[str]:
    return screen.start(HEAD, json.dumps({"fn": fn, **options}))


def ended(screen: Screen, seconds: float = 20) -> Any:
    """What the launch came to; the terminal is as it was, the launcher in front of it."""
    path = screen.stage.folder / "ended"
    until(path.exists, seconds, f"the end of the launch; shown:\n{screen.text}")
    told = json.loads(path.read_text())
    assert screen.modes_now() == screen.modes, screen.text
    assert told["front"]
    assert told["handler"]
    assert set(told["left"]) <= {"xmp-template", "xmp-script"}, (told, screen.text)
    return told["ended"]


def interrupt(screen: Screen) -> None:
    """Press Ctrl-C; Python's readline may forget one that comes just before it waits."""
    for seconds in (3, 10):
        screen.type(CTRL_C)
        if screen.sees("--KeyboardInterrupt--", seconds) is not None:
            return
    raise AssertionError(screen.text)


def noted(screen: Screen, name: str) -> list[str]:
    return sorted(path.name for path in screen.stage.folder.glob(f"{name}-*"))


def process_id(screen: Screen) -> int:
    (name,) = noted(screen, "pid")
    return int(name[4:])


@pytest.mark.parametrize("method", METHODS)
def test_a_variable_of_one_rank_is_read(screen: Screen, method: str) -> None:
    begin(screen, "named", args=[2], start_method=method)
    shown = screen.answer(PROMPT.format(2), "p secret, xmp.rank()")
    assert "xmp: rank 2 is at a breakpoint" in shown
    assert "-> return secret + 1" in shown or "-> for one in who" in shown  # the user's own frame
    screen.see("(22, 2)")
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [1, 12, 23, 34]
    assert PROMPT.format(0) not in screen.text
    screen.stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_a_plain_breakpoint_has_the_terminal(screen: Screen, method: str) -> None:
    begin(screen, "plain", start_method=method)
    assert "have a look" in screen.answer(PROMPT.format(2), "secret = 5")
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [1, 12, 6, 34]
    screen.stage.gone()


@pytest.mark.parametrize("key", ["q\n", CTRL_D], ids=["q", "end-of-file"])
def test_quitting_ends_the_launch_like_an_interrupt(screen: Screen, key: str) -> None:
    begin(screen, "waiting", grace=30)
    screen.see(PROMPT.format(2))
    screen.type(key)
    quit_at = time.monotonic()
    assert ended(screen) == ["KeyboardInterrupt", "the debugger of rank 2 was quit"]
    assert time.monotonic() - quit_at < 3
    assert noted(screen, "finally") == [f"finally-{rank}" for rank in range(4)]
    assert noted(screen, "interrupted") == [f"interrupted-{rank}" for rank in range(4)]
    assert not (screen.stage.folder / "swallowed").exists()  # by `except Exception`
    screen.stage.gone()


def test_ctrl_c_at_the_prompt_is_the_debuggers(screen: Screen) -> None:
    begin(screen, "waiting")
    for _ in range(3):
        screen.see(PROMPT.format(2))
        interrupt(screen)
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [0, 1, 2, 3]
    assert noted(screen, "interrupted") == []
    screen.stage.gone()


def test_after_it_has_continued_ctrl_c_is_everybodys(screen: Screen) -> None:
    begin(screen, "continuing")
    screen.answer(PROMPT.format(2), "c")
    until((screen.stage.folder / "continued").exists, 10, "rank 2 goes on")
    screen.type(CTRL_C)
    assert ended(screen)[0] == "KeyboardInterrupt"
    assert noted(screen, "interrupted") == [f"interrupted-{rank}" for rank in range(4)]
    screen.stage.gone()


def test_a_debugger_that_does_not_hear_cannot_hold_the_terminal(screen: Screen) -> None:
    begin(screen, "deaf", grace=0.5)
    screen.answer(PROMPT.format(2), "n")
    screen.answer(PROMPT.format(2), "n")
    until((screen.stage.folder / "deaf").exists, 10, "the step")
    screen.type(CTRL_C)
    time.sleep(0.3)  # the kernel makes one of two that are pending
    screen.type(CTRL_C)
    screen.see("xmp: rank 2 has not reacted; Ctrl-C once more ends the launch")
    screen.type(CTRL_C)
    assert ended(screen) == ["KeyboardInterrupt", "Ctrl-C"]
    screen.stage.gone()


@pytest.mark.parametrize("option", ["hang_timeout", "timeout", "start_timeout"])
def test_no_clock_runs_meanwhile(screen: Screen, option: str) -> None:
    seconds = {"hang_timeout": 1.0, "timeout": 8.0, "start_timeout": 8.0}[option]
    begin(screen, "waiting", **{option: seconds})
    screen.see(PROMPT.format(2))
    time.sleep(seconds * 1.5)
    screen.type("p 6 * 7\n")
    screen.see("42")
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [0, 1, 2, 3]
    screen.stage.gone()


def test_two_ranks_take_turns(screen: Screen) -> None:
    begin(screen, "named", args=[3, 1])
    screen.see("it waits for its turn")
    first = int(screen.text.partition(" is at a breakpoint (")[0][-1])
    for rank in (first, 4 - first):
        if PROMPT.format(rank) not in screen.text:
            screen.see(PROMPT.format(rank))
        screen.type("p secret\n")
        screen.see(str(rank * 11))
        screen.answer(PROMPT.format(rank), "c")
    assert ended(screen) == [1, 12, 23, 34]
    screen.stage.gone()


def test_killed_at_the_prompt(screen: Screen) -> None:
    process = begin(screen, "waiting")
    screen.see(PROMPT.format(2))
    assert screen.foreground() == process.pid
    os.kill(process_id(screen), signal.SIGKILL)
    kind, text = ended(screen)
    assert kind == "ReplicaDied"
    assert text.startswith("rank 2 of 4")
    assert screen.foreground() == process.pid
    screen.stage.gone()


def test_a_killed_supervisor_leaves_the_terminal_as_it_was(screen: Screen) -> None:
    begin(screen, "waiting")
    screen.see(PROMPT.format(2))
    (supervisor,) = screen.stage.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    assert ended(screen)[0] == "StartError"
    screen.stage.gone()


def test_who_fails_meanwhile_does_not_take_the_prompt_away(screen: Screen) -> None:
    begin(screen, "failing", grace=0.1)
    screen.see(PROMPT.format(2))
    (screen.stage.folder / "fail").touch()
    screen.see("xmp: a replica has failed; the launch ends when the debugger is left")
    time.sleep(0.5)  # longer than the settle window and grace
    screen.type("p 6 * 7\n")
    screen.see("42")
    screen.answer(PROMPT.format(2), "c")
    kind, text = ended(screen)
    assert kind == "ReplicaRaised"
    assert "ValueError: rank 1 is wrong" in text
    screen.stage.gone()


def test_prompts_come_after_what_was_written(screen: Screen) -> None:
    begin(screen, "telling")
    shown = screen.answer(PROMPT.format(2), "n")
    assert "line 49" in shown
    for _ in range(2):
        shown += screen.answer(PROMPT.format(2), "n")
    assert shown.index("from the step") < shown.index("number = 0")
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [0, 1, 2, 3]
    screen.stage.gone()


def test_standard_input_is_there_for_a_step_too(screen: Screen) -> None:
    begin(screen, "input_in_a_step")
    screen.answer(PROMPT.format(2), "n")
    screen.answer("your name? ", "Ada")
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [0, 1, "Ada", 3]
    screen.stage.gone()


def test_without_join_the_prompt_waits_for_it(screen: Screen) -> None:
    begin(screen, "named", args=[2], join=False)
    screen.see("rank 2 is at a breakpoint")
    assert screen.sees(PROMPT.format(2), 0.5) is None
    (screen.stage.folder / "join").touch()
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [1, 12, 23, 34]
    screen.stage.gone()


def test_the_prompt_is_on_the_terminal_where_output_goes_elsewhere(screen: Screen) -> None:
    with open(screen.stage.folder / "log", "w") as log:
        screen.start(HEAD, json.dumps({"fn": "named", "args": [2]}), stdout=log, stderr=log)
    screen.answer(PROMPT.format(2), "p secret")
    screen.see("22")
    screen.see(PROMPT.format(2))
    interrupt(screen)
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [1, 12, 23, 34]
    screen.stage.gone()


@pytest.mark.parametrize("where", ["prefix", "log_dir", "show"])
def test_the_prompt_is_on_the_terminal_where_output_is_captured(screen: Screen, where: str) -> None:
    options = {"prefix": True, "log_dir": str(screen.stage.folder / "logs"), "show": "0"}
    begin(screen, "plain", **{where: options[where]})
    assert "have a look" in screen.answer(PROMPT.format(2), "p secret")
    assert screen.see("22").strip() == "p secret"
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [1, 12, 23, 34]
    screen.stage.gone()


def test_replicas_that_are_threads_take_turns(screen: Screen) -> None:
    (screen.stage.folder / "framework_of_pairs.py").write_text(
        "class Pair:\n"
        "    def __init__(self, info): pass\n"
        "    def beside(self, info): return Pair(info)\n"
        "    def leave(self): pass\n"
        "enter = Pair\n"
    )
    pairs = """
    import sys
    sys.path.insert(0, "")
    from xmp import _runtimes

    class Pairs(_runtimes.Runtime):
        name = "pairs"
        framework = "framework_of_pairs"

        def fit(self, facts, request, hosts):
            return _runtimes.Fit(4, (2, 4), "2 pairs")

        def share(self, job, place, local):
            return _runtimes.Share({}, f"bead:{local}", {"threads_per_process": "2"}, local // 2)

    _runtimes.register(Pairs())
    """
    screen.start(pairs + HEAD, json.dumps({"fn": "named", "args": [0, 1], "runtime": "pairs"}))
    screen.see("it waits for its turn")
    first = int(screen.text.partition(" is at a breakpoint (")[0][-1])
    for rank in (first, 1 - first):
        if PROMPT.format(rank) not in screen.text:
            screen.see(PROMPT.format(rank))
        screen.type("p secret\n")
        screen.see(f"{rank * 11}\n")
        screen.answer(PROMPT.format(rank), "c")
    assert ended(screen) == [1, 12, 23, 34]
    screen.stage.gone()


# --- a shell with job control --------------------------------------------------------------------


def handles(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (number - 1) & 1)


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


def leave(screen: Screen, process: subprocess.Popen[str]) -> None:
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
    screen.see("shell> ")
    told = json.loads((screen.stage.folder / "ended").read_text())
    assert told["ended"] == [0, 1, 2, 3]
    leave(screen, process)


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
    screen.see("shell> ")
    told = json.loads((screen.stage.folder / "ended").read_text())
    assert told["ended"] == [0, 1, 2, 3]
    leave(screen, process)


def test_ctrl_z_without_a_debugger(screen: Screen) -> None:
    """The replicas stop with their launcher and go on with it."""
    process = shell(screen)
    screen.type(command(screen, "counting") + "\n")
    until(lambda: len(noted(screen, "pid")) == 4, 30, "replicas")
    pids = [int(name[4:]) for name in noted(screen, "pid")]
    until(lambda: handles(screen.foreground(), signal.SIGTSTP), 10, "the launcher waits")
    screen.type(CTRL_Z)
    screen.see("Stopped")
    until(lambda: {state(pid) for pid in pids} == {"T"}, 5, "replicas stopped")
    bring_to_front(screen, process)
    until(lambda: "T" not in {state(pid) for pid in pids}, 5, "replicas go on")
    (screen.stage.folder / "release").touch()
    screen.see("shell> ")
    told = json.loads((screen.stage.folder / "ended").read_text())
    assert told["ended"] == [0, 1, 2, 3]
    leave(screen, process)


# --- no terminal ---------------------------------------------------------------------------------


def without_terminal(stage: Stage, fn: str, stdin: Any, **options: Any) -> tuple[Any, str]:
    """What the launch came to, and all that was printed."""
    environment = options.pop("environment", {})
    source = options.pop("source", HEAD)
    process = stage.start(
        source, json.dumps({"fn": fn, **options}), stdin=stdin, env=environment
    )  # fmt: skip
    outcome = stage.outcome(process)
    told = json.loads((stage.folder / "ended").read_text())
    stage.gone()
    return told["ended"], outcome.out + outcome.err


def test_the_debuggers_read_a_pipe_in_turn(stage: Stage) -> None:
    reads, writes = os.pipe()
    os.write(writes, b"p 'secret', secret\nc\np 'secret', secret\nc\n")
    ended, shown = without_terminal(stage, "named", reads, args=[2, 1])
    assert ended == [1, 12, 23, 34]
    assert "('secret', 22)" in shown
    assert "('secret', 11)" in shown
    os.close(reads)
    os.close(writes)


def test_a_pipe_that_ends_quits(stage: Stage) -> None:
    reads, writes = os.pipe()
    os.write(writes, b"p secret\n")
    os.close(writes)
    ended, shown = without_terminal(stage, "named", reads, args=[2])
    os.close(reads)
    assert ended == ["KeyboardInterrupt", "the debugger of rank 2 was quit"]
    assert "22" in shown


@pytest.mark.parametrize("stdin", ["null", "closed", "ended pipe"])
def test_nobody_to_talk_to_is_said_in_one_sentence(stage: Stage, stdin: str) -> None:
    reads, writes = os.pipe()
    os.close(writes)
    closing = "import os; os.close(0)\n" if stdin == "closed" else ""
    (kind, text), _ = without_terminal(
        stage, "named", reads if stdin == "ended pipe" else subprocess.DEVNULL, args=[2],
        source=closing + HEAD.replace("\n    ", "\n"),
    )  # fmt: skip
    os.close(reads)
    assert kind == "ReplicaRaised"
    assert "RuntimeError: breakpoint() has nobody to talk to" in text
    assert "BdbQuit" not in text
    assert text.startswith("rank 2 of 4")


def test_a_notebook_is_pointed_to_one_process(stage: Stage) -> None:
    fake = """
    import sys, types
    sys.modules["IPython"] = types.SimpleNamespace(
        get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    """
    (kind, text), _ = without_terminal(
        stage, "plain", subprocess.DEVNULL, source=fake + HEAD
    )  # fmt: skip
    assert kind == "ReplicaRaised"
    assert "breakpoint() in a notebook needs nprocs=1" in text


def test_breakpoints_can_be_passed_over(stage: Stage) -> None:
    environment = {"PYTHONBREAKPOINT": "0"}
    for fn, args in (("plain", []), ("named", [2])):
        ended, shown = without_terminal(
            stage, fn, subprocess.DEVNULL, args=args, environment=environment
        )
        assert ended == [1, 12, 23, 34]
        assert "breakpoint" not in shown


@pytest.mark.parametrize("method", METHODS)
def test_a_hook_of_the_programs_own_wins(stage: Stage, method: str) -> None:
    ended, _ = without_terminal(
        stage, "plain", subprocess.DEVNULL, start_method=method, environment={"OWN_HOOK": "1"}
    )
    assert ended == [1, 12, 23, 34]
    assert (stage.folder / "own-hook").read_text() == "x"


def test_outside_a_launch_it_is_the_plain_breakpoint(screen: Screen) -> None:
    source = """
    import xmp
    def here():
        mine = 6 * 7
        xmp.breakpoint()
        return mine
    print("got", here())
    """
    screen.start(source)
    assert "-> return mine" in screen.answer("(Pdb) ", "mine += 1")
    screen.answer("(Pdb) ", "c")
    screen.see("got 43")
    screen.stage.gone()
