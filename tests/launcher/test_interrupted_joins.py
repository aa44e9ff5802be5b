"""A Ctrl-C that comes at the last moment of a join, when nothing waits any more."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.support.in_script import never_returns
from tests.support.launching import launch
from xmp._processes.launcher.launch import Launch


def waits(rank: int) -> None:
    never_returns()


def interrupted(self: Launch, *given: Any) -> bool:
    """The wait whose time is over; the signal's handler runs when the caller gets it back."""
    os.kill(os.getpid(), signal.SIGINT)
    return False


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_it_ends_the_launch(monkeypatch: pytest.MonkeyPatch, max_restarts: int) -> None:
    context = launch("forkserver", waits, join=False, max_restarts=max_restarts, grace=1)
    monkeypatch.setattr(Launch, "_wait_for_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        context.join(timeout=0)
    assert all(process.exitcode is not None for process in context.processes)
