"""The running launches of this process, also those whose handle the user has not kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmp._processes.messages.launch import Preempt

if TYPE_CHECKING:
    from .launch import Launch
    from .restarts import RestartingLaunch

__all__ = ["preempt_all", "reap_finished", "running_launches"]

running_launches: set[Launch | RestartingLaunch] = set()


def reap_finished() -> None:
    """Take in the end of launches that have ended and that no thread joins."""
    for launch in list(running_launches):
        launch.reap()


def preempt_all() -> None:
    """Pass on a SIGTERM that this process has received: it concerns all launches."""
    for launch in list(running_launches):
        launch.ask(Preempt())
