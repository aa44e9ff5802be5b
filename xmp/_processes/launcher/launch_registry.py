"""The running launches of this process, also those whose handle the user has not kept."""

from __future__ import annotations

from typing import Protocol

from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Preempt

from .job import Job

__all__ = ["RunningLaunch", "preempt_all", "reap_finished", "running_launches"]


class RunningLaunch(Protocol):
    """What this process asks of a launch without its handle."""

    @property
    def job(self) -> Job:
        """What was launched."""

    def ask(self, message: Message) -> None:
        """Send a request to the supervisor."""

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end."""

    def raise_error(self) -> None:
        """Raise the error that the launch has ended with, if there is one."""

    def reap(self) -> None:
        """Take in the messages that have arrived, and so the end; does not wait."""

    def drop(self) -> None:
        """Forget the launch, in a forked child of the launcher: it belongs to the parent."""


running_launches: set[RunningLaunch] = set()


def reap_finished() -> None:
    """Take in the end of launches that have ended and that no thread joins."""
    for launch in list(running_launches):
        launch.reap()


def preempt_all() -> None:
    """Pass on a SIGTERM that this process has received: it concerns all launches."""
    for launch in list(running_launches):
        launch.ask(Preempt())
