"""Breakpoints in replicas: a real terminal, real keys."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from debugged import HEAD, METHODS, PROMPT, begin, ended, interrupt, noted, process_id, take_turns
from in_script import signals
from screens import CTRL_C, CTRL_D, Screen
from stages import until


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
    assert time.monotonic() - quit_at < 15
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


def is_pending(pid: int, number: int) -> bool:
    """Whether this signal waits for a process that blocks it."""
    return number in signals(pid, "ShdPnd") | signals(pid, "SigPnd")


def test_a_debugger_that_does_not_hear_cannot_hold_the_terminal(screen: Screen) -> None:
    begin(screen, "deaf", grace=0.5)
    screen.answer(PROMPT.format(2), "n")
    screen.answer(PROMPT.format(2), "n")
    until(lambda: noted(screen, "pid"), 10, "the step")
    screen.type(CTRL_C)
    # Of two that come at once, the launcher hears one.
    until(lambda: is_pending(process_id(screen), signal.SIGINT), 10, "Ctrl-C told to the replica")
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
    time.sleep(seconds * 1.5)  # the clock that must stand still would be over
    screen.type("p 6 * 7\n")
    screen.see("42")
    screen.answer(PROMPT.format(2), "c")
    assert ended(screen) == [0, 1, 2, 3]
    screen.stage.gone()


def test_two_ranks_take_turns(screen: Screen) -> None:
    begin(screen, "named", args=[3, 1])
    take_turns(screen, {1, 3})
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
    time.sleep(
        0.5
    )  # longer than the settle window and grace: what must not happen has had its time
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
    take_turns(screen, {0, 1})
    assert ended(screen) == [1, 12, 23, 34]
    screen.stage.gone()
