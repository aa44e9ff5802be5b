"""Whose stacks are waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import pytest

from xmp._processes.system import stack_dump

CHILD = f"""
import faulthandler, signal
faulthandler.register({stack_dump.DUMP_SIGNAL})
print("registered", flush=True)
signal.pause()
"""


@dataclass(eq=False)
class Asked:
    """A replica that was told to end, and does before the request reaches it."""

    pid: int
    stacks: stack_dump.StackFile
    rank: int = 0
    ended: bool = False
    """Its supervisor has not taken its end in."""

    def request_stacks(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def test_one_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over hosts each failure cost half a second for each such request."""
    monkeypatch.setattr(stack_dump, "_ANSWER_SECONDS", 3600)
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    with child, tempfile.TemporaryFile() as file:
        assert child.stdout is not None
        assert child.stdout.readline() == "registered\n"
        asked = Asked(child.pid, stack_dump.StackFile(file.fileno()))
        assert stack_dump.take([asked]) == {0: "ended before it answered\n"}
