"""A program whose replicas stop at breakpoints, and what its user does in the terminal."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.support.terminal import CTRL_C, Terminal
from tests.support.waiting import until

__all__ = [
    "HEAD",
    "PROMPT",
    "begin",
    "ended",
    "interrupt",
    "noted",
    "process_id",
    "take_turns",
]

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

    def writing(rank):
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

    def still(rank):
        '''The others make no step of Python, which would be progress.'''
        end = f"end-{rank}"
        if rank != 2:
            os.mkfifo(end)
            open(end).close()
            return rank
        breakpoint()
        for other in (0, 1, 3):
            wait_for(f"end-{other}")
            open(f"end-{other}", "w").close()
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
            note(f"pid-{os.getpid()}"), wait_for("never")
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


def begin(terminal: Terminal, fn: str, **options: Any) -> subprocess.Popen[str]:
    return terminal.start(HEAD, json.dumps({"fn": fn, **options}))


def ended(terminal: Terminal, seconds: float = 20) -> Any:
    """What the launch came to; the terminal is as it was, the launcher in front of it."""
    path = terminal.stage.folder / "ended"
    until(path.exists, seconds, f"the end of the launch; shown:\n{terminal.shown}")
    found = json.loads(path.read_text())
    assert terminal.modes_now() == terminal.modes, terminal.shown
    assert found["front"]
    assert found["handler"]
    assert set(found["left"]) <= {"xmp-template", "xmp-script"}, (found, terminal.shown)
    return found["ended"]


def interrupt(terminal: Terminal) -> None:
    """Press Ctrl-C; Python's readline may forget one that comes just before it waits."""
    for seconds in (3, 10):
        terminal.type(CTRL_C)
        if terminal.sees("--KeyboardInterrupt--", seconds) is not None:
            return
    raise AssertionError(terminal.shown)


def noted(terminal: Terminal, name: str) -> list[str]:
    return sorted(path.name for path in terminal.stage.folder.glob(f"{name}-*"))


def process_id(terminal: Terminal) -> int:
    (name,) = noted(terminal, "pid")
    return int(name[4:])


def take_turns(terminal: Terminal, ranks: set[int]) -> None:
    """Answer two debuggers, in whatever order they come."""
    terminal.see(" is at a breakpoint (")
    first = int(terminal.shown.partition(" is at a breakpoint (")[0][-1])
    for rank in (first, *(ranks - {first})):
        if PROMPT.format(rank) not in terminal.shown:
            terminal.see(PROMPT.format(rank))
        terminal.type("p secret\n")
        terminal.see(f"{rank * 11}\n")
        terminal.answer(PROMPT.format(rank), "c")
