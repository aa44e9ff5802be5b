"""The way to what starts the replicas of one host: their supervisor, or the agent of that host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from xmp._processes.messages.catalog import Message
    from xmp._processes.messages.connection import Connection

__all__ = ["Link", "OverConnection"]


class Link(Protocol):
    """One end of a connection, and what is known of the process at the other end."""

    index: int
    """Which host of the launch that is; 0 where there is one."""

    def fileno(self) -> int:
        """Readable when there is something to receive."""

    def readable(self, timeout: float | None = 0) -> bool:
        """Return whether a message or the end comes within ``timeout`` seconds."""

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a request. Raise Closed if the other end is."""

    def recv(self, timeout: float | None = None) -> tuple[Message, list[int]]:
        """Return the next report, with its descriptors.

        Raises Closed after the last one, TimeoutError after ``timeout`` seconds.
        """

    def kill(self) -> None:
        """Kill the process, with all that it has started."""

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the process (SIGSTOP)."""

    def how_it_ended(self) -> str:
        """Return how the process has ended, for a person: "was killed by SIGKILL"."""


class OverConnection:
    """The part of a link that is its connection."""

    _connection: Connection

    def fileno(self) -> int:
        return self._connection.fileno()

    def readable(self, timeout: float | None = 0) -> bool:
        return self._connection.readable(timeout)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self._connection.send(message, descriptors)

    def recv(self, timeout: float | None = None) -> tuple[Message, list[int]]:
        return self._connection.recv(timeout)
