"""What is unpickled may crash: the report says that it was loading."""

from __future__ import annotations

import pytest

from tests.support.stage import Script

pytestmark = pytest.mark.failing

PROGRAM = """
import ctypes, os, sys
import xmp

def crash():
    ctypes.string_at(0)

class Bomb:
    def __reduce__(self):
        return (crash, ()) if sys.argv[2] == "crash" else (os._exit, (5,))

def fn(rank, value):
    print("in fn")

if __name__ == "__main__":
    try:
        xmp.spawn(fn, (Bomb(),), nprocs=2, runtime="cpu", start_method=sys.argv[1])
    except (xmp.StartError, xmp.ReplicaDied) as error:
        print(error)
"""


def test_an_argument_that_crashes_the_supervisor(script: Script) -> None:
    done = script(PROGRAM, "forkserver", "crash")
    assert done.code == 0, done.err
    assert "ended while it loaded the function and its arguments: killed by SIGSEGV" in done.out
    assert "in crash" in done.err, "the stack of the crash"
    assert "in fn" not in done.out


def test_an_argument_that_ends_the_supervisor(script: Script) -> None:
    done = script(PROGRAM, "forkserver", "exit")
    assert "ended while it loaded the function and its arguments: exit code 5" in done.out


@pytest.mark.parametrize("how", ["crash", "exit"])
def test_an_argument_that_ends_a_fresh_interpreter(how: str, script: Script) -> None:
    done = script(PROGRAM, "spawn", how)
    assert "rank " in done.out
    assert "It had not reached the function" in done.out
    assert how == "exit" or "in crash" in done.out


def test_a_replica_in_its_function_has_reached_it(script: Script) -> None:
    done = script(PROGRAM.replace('print("in fn")', "crash()").replace("(Bomb(),)", "(1,)"),
                  "spawn", "crash")  # fmt: skip
    assert "was killed by SIGSEGV" in done.out
    assert "had not reached" not in done.out
