"""The launches of this process that have not ended; also those whose handle nobody keeps."""

from __future__ import annotations

from typing import Any, Protocol

from .job import Job

__all__ = ["Living", "live", "preempt_all", "put_away_ended"]


class Living(Protocol):
    """What is asked of a launch by others than its holder."""

    @property
    def job(self) -> Job:
        """What was launched."""

    def ask(self, name: str, *rest: Any) -> None:
        """Ask its supervisor for something."""

    def wait(self, timeout: float | None) -> bool:
        """Wait for its end."""

    def outcome(self) -> None:
        """Raise what went wrong."""

    def put_away(self) -> None:
        """Take in that it has ended, if it has."""

    def drop(self) -> None:
        """In a forked child of the launcher: it is not ours."""


live: set[Living] = set()


def put_away_ended() -> None:
    """Of the launches that nobody joins: take in that they have ended."""
    for launch in list(live):
        launch.put_away()


def preempt_all() -> None:
    """A SIGTERM has arrived: it is for all of them."""
    for launch in list(live):
        launch.ask("preempt")
