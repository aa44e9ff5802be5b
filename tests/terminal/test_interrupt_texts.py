"""What a Ctrl-C leaves on the screen: the user's line, and where the replicas were."""

from __future__ import annotations

import pytest

from tests.support.stage import PACKAGE, Stage

pytestmark = pytest.mark.failing

HEAD = """
import os, signal, sys, time
import xmp

def waits():
    with open("in_" + str(xmp.rank()), "w") as file:
        file.write(str(os.getpid()))
    os.read(os.pipe()[0], 1)

def asleep(rank):
    try:
        with open("in_" + str(rank)) as file, open(f"/proc/{file.read()}/wchan") as function:
            return "pipe" in function.read()
    except OSError:
        return False

def others():
    while not (asleep(0) and asleep(1)):
        time.sleep(0.01)
    os.kill(int(os.environ["LAUNCHER"]), signal.SIGINT)
    waits()

def fn(rank):
    others() if rank == 2 else waits()

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    os.environ["LAUNCHER"] = str(os.getpid())
"""


def interrupted(stage: Stage, call: str) -> list[str]:
    """What the script of this call wrote before it ended by SIGINT."""
    lines = "".join(f"    {line}\n" for line in call.splitlines())
    done = stage.outcome(stage.start(HEAD + lines, str(stage.folder)))
    assert done.code == -2, done
    return done.err.splitlines()


ARGS = "fn, nprocs=3, runtime='cpu'"


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_the_users_line_and_where_the_ranks_were(method: str, stage: Stage) -> None:
    shown = interrupted(stage, f"xmp.spawn({ARGS}, start_method={method!r})")
    frames = [line for line in shown if line.startswith("  File")]
    assert "in <module>" in frames[0]
    assert "in spawn" in frames[1]
    assert sum(f"{PACKAGE}/" in line for line in frames) == 1, shown
    text = "\n".join(shown)
    assert "\nKeyboardInterrupt: the replicas were interrupted here:\nranks 0-1:\n" in text
    first, _, second = text.partition("\nranks 0-1:\n")[2].partition("\nrank 2:\n")
    assert " in waits" in first
    assert "os.read(os.pipe()[0], 1)" in first
    assert " in others" in second
    assert "Traceback" not in second


@pytest.mark.parametrize("wait", ["join", "results"])
def test_a_launch_that_is_joined_later(wait: str, stage: Stage) -> None:
    shown = interrupted(stage, f"context = xmp.spawn({ARGS}, join=False)\ncontext.{wait}()")
    assert sum(f"{PACKAGE}/" in line for line in shown) == 1, shown
    assert "KeyboardInterrupt: the replicas were interrupted here:" in shown


def test_one_replica_in_the_process_itself(stage: Stage) -> None:
    call = """
def here(rank):
    os.kill(os.getpid(), signal.SIGINT)
    waits()
xmp.spawn(here, nprocs=1, runtime='cpu')"""
    shown = interrupted(stage, call)
    frames = [line.rpartition(" in ")[2] for line in shown if line.startswith("  File")]
    assert frames[:3] == ["<module>", "spawn", "here"], shown
    assert shown[-1] == "KeyboardInterrupt"


def test_what_a_handler_raises_keeps_its_frames(stage: Stage) -> None:
    call = f"""
def mine(*_):
    raise KeyboardInterrupt("mine")
signal.signal(signal.SIGINT, mine)
xmp.spawn({ARGS})"""
    shown = interrupted(stage, call)
    assert shown[-1] == "KeyboardInterrupt: mine"
    frames = [line.rpartition(" in ")[2] for line in shown if line.startswith("  File")]
    assert frames == ["<module>", "spawn", "mine"], shown
