"""``engine="ray"`` where Ray is not installed: one error, with the line that installs it."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

BLOCKED = """
import sys
sys.modules["ray"] = None  # as if there were none (importlib.util.find_spec)
"""
LAUNCHES = """
import xmp

def function(rank):
    return rank

if __name__ == "__main__":
    try:
        xmp.launch(function, hosts=2, engine="ray")
    except xmp.PlanError as error:
        print(error)
"""
COMMANDS = """
import sys
from xmp.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_launch_says_what_to_install(stage: Stage) -> None:
    done = stage.run(BLOCKED + LAUNCHES)
    assert done.out.startswith('engine="ray": Ray is not installed here')
    assert "Run: pip install ray (and on every host" in done.out


@pytest.mark.parametrize(
    ("words", "code", "level"),
    [
        (("run", "--engine", "ray", "--hosts", "2", "script1.py"), 2, "xmp"),
        (("doctor", "--runtime", "cpu", "--engine", "ray"), 1, "problem"),
        (("doctor", "--runtime", "cpu"), 0, "note"),
    ],
    ids=str,
)
def test_so_do_the_commands(stage: Stage, words: tuple[str, ...], code: int, level: str) -> None:
    done = stage.outcome(stage.start(BLOCKED + COMMANDS, *words))
    assert done.code == code, done.err
    lines = [line for line in (done.out + done.err).splitlines() if "Ray is not installed" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"{level}: ")
    assert "pip install ray" in lines[0]
