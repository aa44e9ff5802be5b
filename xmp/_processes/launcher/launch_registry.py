"""The running launches of this process, also those whose handle the user has not kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from xmp._processes.messages.launch import Preempt

if TYPE_CHECKING:
    from xmp._processes.messages.catalog import Message

    from .job import Job

__all__ = ["preempt_all", "reap_finished", "running_launches"]


class Running(Protocol):
    """A launch, of one attempt or of several."""

    @property
    def job(self) -> Job: ...

    def ask(self, message: Message) -> None: ...

    def reap(self) -> None: ...

    def drop(self) -> None: ...

    def leave(self) -> None: ...

    def wait(self, timeout: float | None) -> bool: ...

    def raise_error(self) -> None: ...


running_launches: set[Running] = set()


def reap_finished() -> None:
    """Take in the end of launches that have ended and that no thread joins."""
    for launch in list(running_launches):
        launch.reap()


def preempt_all() -> None:
    """Pass on a SIGTERM that this process has received: it concerns all launches."""
    for launch in list(running_launches):
        launch.ask(Preempt())
