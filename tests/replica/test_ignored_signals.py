"""Replicas ignore the signals that their launcher ignores, as its children do."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import xmp
from tests.support.launching import launch
from tests.support.stage import Python, Script

NUMBERS = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
AS_NOHUP = 'trap "" INT'
SHOW = """
import signal
print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
"""


def ignored(rank: int) -> list[int]:
    return [number for number in NUMBERS if signal.getsignal(number) == signal.SIG_IGN]


def test_the_ignored_signals_of_this_call(method: str) -> None:
    """Also where the template was started while they were ignored."""
    xmp.shutdown()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in NUMBERS}
    try:
        assert list(launch(method, ignored)) == [[*NUMBERS]] * 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert list(launch(method, ignored)) == [[], []]


def test_those_of_scripts_and_their_children(python: Python, tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    run = ("-m", "xmp", "run", "--runtime", "cpu", "-n", "2")
    for program in ([str(script)], ["--no-python", "sh", "-c", f"{sys.executable} {script}"]):
        done = python(*run, *program, shell_before=AS_NOHUP)
        assert sorted(done.out.split()) == ["True", "True"], done.err


def test_those_of_a_driver_of_hosts(script: Script) -> None:
    done = script(
        """
import signal
import xmp

def fn(rank):
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN

if __name__ == "__main__":
    print(*xmp.launch(fn, nprocs=1, hosts=2, engine="local", runtime="cpu"))
""",
        shell_before=AS_NOHUP,
    )
    assert done.out == "True True\n", done.err


def test_a_debugger_that_is_quit_ends_those_that_ignore_ctrl_c(script: Script) -> None:
    """By SIGTERM: the test does not last as long as the grace."""
    done = script(
        """
import xmp
from tests.support.in_script import never_returns

def fn(rank):
    xmp.breakpoint()
    never_returns()

if __name__ == "__main__":
    xmp.spawn(fn, nprocs=2, runtime="cpu", grace=600)
""",
        shell_before=AS_NOHUP,
        stdin="q\n",
    )
    assert "KeyboardInterrupt: the debugger of rank 0 was quit" in done.err
