"""Breakpoints in replicas: a real terminal, real keys."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.support.breakpoint_program import (
    HEAD,
    PROMPT,
    begin,
    ended,
    interrupt,
    noted,
    process_id,
    take_turns,
)
from tests.support.in_script import signals
from tests.support.launching import METHODS
from tests.support.terminal import CTRL_C, CTRL_D, Terminal
from tests.support.waiting import until

pytestmark = pytest.mark.failing


def test_a_variable_of_one_rank_is_read(terminal: Terminal) -> None:
    begin(terminal, "named", args=[2])
    shown = terminal.answer(PROMPT.format(2), "p secret, xmp.rank()")
    assert "xmp: rank 2 is at a breakpoint" in shown
    assert "-> return secret + 1" in shown or "-> for one in who" in shown  # the user's own frame
    terminal.see("(22, 2)")
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [1, 12, 23, 34]
    assert PROMPT.format(0) not in terminal.shown
    terminal.stage.gone()


@pytest.mark.parametrize("method", METHODS)
def test_a_plain_breakpoint_has_the_terminal(terminal: Terminal, method: str) -> None:
    begin(terminal, "plain", start_method=method)
    assert "have a look" in terminal.answer(PROMPT.format(2), "secret = 5")
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [1, 12, 6, 34]
    terminal.stage.gone()


@pytest.mark.parametrize("key", ["q\n", CTRL_D], ids=["q", "end-of-file"])
def test_quitting_ends_the_launch_like_an_interrupt(terminal: Terminal, key: str) -> None:
    begin(terminal, "waiting", grace=600)
    terminal.see(PROMPT.format(2))
    terminal.type(key)
    assert ended(terminal) == ["KeyboardInterrupt", "the debugger of rank 2 was quit"]
    assert noted(terminal, "finally") == [f"finally-{rank}" for rank in range(4)]
    assert noted(terminal, "interrupted") == [f"interrupted-{rank}" for rank in range(4)]
    assert not (terminal.stage.folder / "swallowed").exists()  # by `except Exception`
    terminal.stage.gone()


def test_ctrl_c_at_the_prompt_is_the_debuggers(terminal: Terminal) -> None:
    begin(terminal, "waiting")
    for _ in range(3):
        terminal.see(PROMPT.format(2))
        interrupt(terminal)
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [0, 1, 2, 3]
    assert noted(terminal, "interrupted") == []
    terminal.stage.gone()


def test_after_it_has_continued_ctrl_c_is_everybodys(terminal: Terminal) -> None:
    begin(terminal, "continuing")
    terminal.answer(PROMPT.format(2), "c")
    until((terminal.stage.folder / "continued").exists, 10, "rank 2 goes on")
    terminal.type(CTRL_C)
    assert ended(terminal)[0] == "KeyboardInterrupt"
    assert noted(terminal, "interrupted") == [f"interrupted-{rank}" for rank in range(4)]
    terminal.stage.gone()


def is_pending(pid: int, number: int) -> bool:
    """Whether this signal waits for a process that blocks it."""
    return number in signals(pid, "ShdPnd") | signals(pid, "SigPnd")


def test_a_debugger_that_does_not_hear_cannot_hold_the_terminal(terminal: Terminal) -> None:
    begin(terminal, "deaf", grace=0.5)
    terminal.answer(PROMPT.format(2), "n")
    terminal.answer(PROMPT.format(2), "n")
    until(lambda: noted(terminal, "pid"), 10, "the step")
    terminal.type(CTRL_C)
    # Of two that come at once, the launcher hears one.
    until(lambda: is_pending(process_id(terminal), signal.SIGINT), 10, "Ctrl-C sent to the replica")
    terminal.type(CTRL_C)
    terminal.see("xmp: rank 2 has not reacted; Ctrl-C once more ends the launch")
    terminal.type(CTRL_C)
    assert ended(terminal) == ["KeyboardInterrupt", "Ctrl-C"]
    terminal.stage.gone()


def test_no_clock_runs_meanwhile(terminal: Terminal) -> None:
    begin(terminal, "still", hang_timeout=1.0)
    terminal.see(PROMPT.format(2))
    time.sleep(1.5)  # the clock that must stand still would be over
    terminal.type("p 6 * 7\n")
    terminal.see("42")
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [0, 1, 2, 3]
    terminal.stage.gone()


def test_two_ranks_take_turns(terminal: Terminal) -> None:
    begin(terminal, "named", args=[3, 1])
    take_turns(terminal, {1, 3})
    assert ended(terminal) == [1, 12, 23, 34]
    terminal.stage.gone()


def test_killed_at_the_prompt(terminal: Terminal) -> None:
    process = begin(terminal, "waiting")
    terminal.see(PROMPT.format(2))
    assert terminal.foreground() == process.pid
    os.kill(process_id(terminal), signal.SIGKILL)
    kind, text = ended(terminal)
    assert kind == "ReplicaDied"
    assert text.startswith("rank 2 of 4")
    assert terminal.foreground() == process.pid
    terminal.stage.gone()


def test_a_killed_supervisor_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    begin(terminal, "waiting")
    terminal.see(PROMPT.format(2))
    (supervisor,) = terminal.stage.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    assert ended(terminal)[0] == "StartError"
    terminal.stage.gone()


def test_a_failure_meanwhile_does_not_take_the_prompt_away(terminal: Terminal) -> None:
    begin(terminal, "failing", grace=0.1)
    terminal.see(PROMPT.format(2))
    (terminal.stage.folder / "fail").touch()
    terminal.see("xmp: a replica has failed; the launch ends when the debugger is left")
    time.sleep(
        0.5
    )  # longer than the settle window and grace: what must not happen has had its time
    terminal.type("p 6 * 7\n")
    terminal.see("42")
    terminal.answer(PROMPT.format(2), "c")
    kind, text = ended(terminal)
    assert kind == "ReplicaRaised"
    assert "ValueError: rank 1 is wrong" in text
    terminal.stage.gone()


def test_prompts_come_after_what_was_written(terminal: Terminal) -> None:
    begin(terminal, "writing")
    shown = terminal.answer(PROMPT.format(2), "n")
    assert "line 49" in shown
    for _ in range(2):
        shown += terminal.answer(PROMPT.format(2), "n")
    assert shown.index("from the step") < shown.index("number = 0")
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [0, 1, 2, 3]
    terminal.stage.gone()


def test_standard_input_is_there_for_a_step_too(terminal: Terminal) -> None:
    begin(terminal, "input_in_a_step")
    terminal.answer(PROMPT.format(2), "n")
    terminal.answer("your name? ", "Ada")
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [0, 1, "Ada", 3]
    terminal.stage.gone()


def test_without_join_the_prompt_waits_for_it(terminal: Terminal) -> None:
    begin(terminal, "named", args=[2], join=False)
    terminal.see("rank 2 is at a breakpoint")
    assert terminal.sees(PROMPT.format(2), 0.5) is None
    (terminal.stage.folder / "join").touch()
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [1, 12, 23, 34]
    terminal.stage.gone()


def test_the_prompt_is_on_the_terminal_where_output_goes_elsewhere(terminal: Terminal) -> None:
    with open(terminal.stage.folder / "log", "w") as log:
        terminal.start(HEAD, json.dumps({"fn": "named", "args": [2]}), stdout=log, stderr=log)
    terminal.answer(PROMPT.format(2), "p secret")
    terminal.see("22")
    terminal.see(PROMPT.format(2))
    interrupt(terminal)
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [1, 12, 23, 34]
    terminal.stage.gone()


def test_the_prompt_is_on_the_terminal_where_output_is_captured(terminal: Terminal) -> None:
    logs = str(terminal.stage.folder / "logs")
    begin(terminal, "plain", prefix=True, log_dir=logs, show="0")
    assert "have a look" in terminal.answer(PROMPT.format(2), "p secret")
    assert terminal.see("22").strip() == "p secret"
    terminal.answer(PROMPT.format(2), "c")
    assert ended(terminal) == [1, 12, 23, 34]
    terminal.stage.gone()


def test_replicas_that_are_threads_take_turns(terminal: Terminal) -> None:
    (terminal.stage.folder / "framework_of_pairs.py").write_text(
        "class Pair:\n"
        "    def __init__(self, info): pass\n"
        "    def beside(self, info): return Pair(info)\n"
        "    def leave(self): pass\n"
        "enter = Pair\n"
    )
    pairs = """
    import sys
    sys.path.insert(0, "")
    from xmp._plan import runtimes

    class Pairs(runtimes.Runtime):
        name = "pairs"
        framework = "framework_of_pairs"

        def fit(self, facts, request, hosts):
            return runtimes.Fit(4, (2, 4), "2 pairs")

        def share(self, job, place, local):
            return runtimes.Share({}, f"bead:{local}", {"threads_per_process": "2"}, local // 2)

    runtimes.register(Pairs())
    """
    terminal.start(pairs + HEAD, json.dumps({"fn": "named", "args": [0, 1], "runtime": "pairs"}))
    take_turns(terminal, {0, 1})
    assert ended(terminal) == [1, 12, 23, 34]
    terminal.stage.gone()
