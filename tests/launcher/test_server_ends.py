"""The end of a fork that the launcher has made itself, and how `xmp` describes processes of it."""

from __future__ import annotations

import os
import signal

import pytest

import xmp
from tests.support.launching import never_returns
from xmp._os import proc
from xmp._os.probe.launches import described
from xmp._processes.launcher import server_process


def test_a_fork_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "END_WAIT", 0.1)
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    server_process.wait_for_fork(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_fork_that_ends_is_waited_for() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    server_process.wait_for_fork(pid)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


def test_a_process_is_described_with_its_launch() -> None:
    context = xmp.spawn(lambda rank: never_returns(), nprocs=2, runtime="cpu", join=False)
    found = proc.process(context.pids()[0])
    assert found is not None
    words = described(found).command
    context.terminate()
    assert words.startswith("xmp-replica")
    assert words.endswith(", runtime cpu")
