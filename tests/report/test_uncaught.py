"""An error that ends a script is said once; a program's own hook for such errors stays."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.failing

FAILS = """
import pdb, sys, traceback
import xmp

def fn(rank):
    raise ValueError("no such label")

def fails():
    xmp.spawn(fn, nprocs=2, runtime="cpu")
"""


def test_python_s_hook_is_back_when_the_error_is_gone(stage: Stage) -> None:
    script = f"""{FAILS}
if __name__ == "__main__":
    try:
        fails()
    except xmp.ReplicaRaised as error:
        print(sys.excepthook is sys.__excepthook__, type(error.__cause__).__name__)
    print(sys.excepthook is sys.__excepthook__)
"""
    assert stage.run(script).out.split() == ["False", "ValueError", "True"]


def test_the_program_s_own_hook_stays(stage: Stage) -> None:
    script = f"""{FAILS}
def mine(kind, error, frames):
    names = [frame.name for frame in traceback.extract_tb(frames)]
    print(names[0], type(error.__cause__).__name__)

if __name__ == "__main__":
    sys.excepthook = mine
    fails()
"""
    assert stage.run(script, ok=False).out.split() == ["<module>", "ValueError"]


def test_another_error_is_shown_as_by_python(stage: Stage) -> None:
    script = f"""{FAILS}
if __name__ == "__main__":
    try:
        fails()
    except xmp.ReplicaRaised as error:
        raise LookupError("of the program") from error
"""
    said = stage.run(script, ok=False).err
    assert said.count("The above exception was the direct cause") == 2
    assert said.endswith("LookupError: of the program\n")


def test_a_debugger_begins_at_the_call(stage: Stage) -> None:
    script = f"""{FAILS}
def shown(*_):
    sys.excepthook = sys.__excepthook__

if __name__ == "__main__":
    try:
        fails()
    except xmp.ReplicaRaised as error:
        kept = error
        sys.excepthook(type(error), error, error.__traceback__)
    print(traceback.extract_tb(kept.__traceback__)[-1].name, type(kept.__cause__).__name__)
"""
    assert stage.run(script).out.split() == ["fails", "ValueError"]
