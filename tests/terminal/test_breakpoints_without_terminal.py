"""Breakpoints where there is no terminal: a pipe, no input, a notebook, another debugger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.breakpoint_program import HEAD
from tests.support.launching import METHODS, never_returns
from tests.support.stage import Stage
from tests.support.terminal import Terminal
from tests.support.waiting import until
from xmp._processes.terminal.lender import TerminalLender

pytestmark = pytest.mark.failing


def without_terminal(stage: Stage, fn: str, stdin: Any, **options: Any) -> tuple[Any, str]:
    """What the launch came to, and all that was printed."""
    environment = options.pop("environment", {})
    source = options.pop("source", HEAD)
    process = stage.start(
        source, json.dumps({"fn": fn, **options}), stdin=stdin, env=environment
    )  # fmt: skip
    outcome = stage.outcome(process)
    found = json.loads((stage.folder / "ended").read_text())
    stage.gone()
    return found["ended"], outcome.out + outcome.err


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
def test_nothing_to_read_from_is_said_in_one_sentence(stage: Stage, stdin: str) -> None:
    reads, writes = os.pipe()
    os.close(writes)
    closing = "import os; os.close(0)\n" if stdin == "closed" else ""
    (kind, text), _ = without_terminal(
        stage, "named", reads if stdin == "ended pipe" else subprocess.DEVNULL, args=[2],
        source=closing + HEAD.replace("\n    ", "\n"),
    )  # fmt: skip
    os.close(reads)
    assert kind == "ReplicaRaised"
    assert "RuntimeError: breakpoint() needs a terminal or a pipe to read from" in text
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


def test_outside_a_launch_it_is_the_plain_breakpoint(terminal: Terminal) -> None:
    source = """
    import xmp
    def here():
        mine = 6 * 7
        xmp.breakpoint()
        return mine
    print("got", here())
    """
    terminal.start(source)
    assert "-> return mine" in terminal.answer("(Pdb) ", "mine += 1")
    terminal.answer("(Pdb) ", "c")
    terminal.see("got 43")
    terminal.stage.gone()


def stops(rank: int) -> None:
    breakpoint()


def test_a_launch_that_finds_the_terminal_lent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TerminalLender, "_busy", object())
    with pytest.raises(xmp.ReplicaRaised, match="a replica of another launch of this program has"):
        xmp.spawn(stops, nprocs=2, runtime="cpu")


def stops_at_its_end(rank: int, ready: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: breakpoint())
    ready.touch()
    never_returns()


def test_a_launch_that_is_being_ended_waits_for_no_debugger(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    args = (ready,)
    with xmp.spawn(stops_at_its_end, args, 1, join=False, runtime="cpu", grace=30) as context:
        until(ready.exists, 20, "the replica is in its function")
        context.terminate()
        with pytest.raises(xmp.ReplicaRaised, match="the launch is being ended"):
            context.join()
