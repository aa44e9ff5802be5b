"""What happens to a launch, as the failure rules (``_watch``) are told it. Pure.

All times are monotonic nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Ended",
    "Entered",
    "Event",
    "Interrupt",
    "Kill",
    "Pause",
    "Progress",
    "Raised",
    "Resume",
    "Returned",
    "Stop",
    "Tick",
]


@dataclass(frozen=True)
class Entered:
    """The user's function begins in a replica."""

    rank: int
    at: int


@dataclass(frozen=True)
class Progress:
    """When a replica was last seen to get on; told when a deadline has passed."""

    rank: int
    at: int


@dataclass(frozen=True)
class Returned:
    """The function returned, or ended by ``sys.exit(0)``; the process still has to end."""

    rank: int
    at: int


@dataclass(frozen=True)
class Raised:
    """A replica says that it failed; ``words`` are those of its exception."""

    rank: int
    at: int
    words: str = ""


@dataclass(frozen=True)
class Ended:
    """A replica's process has ended: ``signal`` is its number, 0 if it exited."""

    rank: int
    at: int
    exit_code: int = 0
    signal: int = 0
    words: str = ""
    """Its last words on standard error."""


@dataclass(frozen=True)
class Interrupt:
    """The user pressed Ctrl-C."""

    at: int


@dataclass(frozen=True)
class Stop:
    """The launcher asks to end everything in order."""

    at: int


@dataclass(frozen=True)
class Kill:
    """The launcher asks to end everything now."""

    at: int


@dataclass(frozen=True)
class Pause:
    """The user has stopped all replicas (Ctrl-Z), or debugs one of them."""

    at: int
    why: str = "stopped"
    """Several may hold the clocks, each for its own reason."""


@dataclass(frozen=True)
class Resume:
    """They go on, as far as this reason is concerned."""

    at: int
    why: str = "stopped"


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    at: int


Event = (
    Entered | Progress | Returned | Raised | Ended | Interrupt | Stop | Kill | Pause | Resume | Tick
)
