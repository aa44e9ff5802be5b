"""The events that the failure rules (``watch``) take as input. Pure.

All times (``at``) are monotonic nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "AtPost", "CallOff", "Ended", "Entered", "Interrupt", "Kill", "Leave", "Pause", "Progress",
    "Raised", "Resume", "Returned", "Stop", "Stuck", "Tick", "WatchEvent",
]  # fmt: skip


@dataclass(frozen=True)
class Entered:
    """The user's function begins in a replica."""

    rank: int
    at: int


@dataclass(frozen=True)
class Progress:
    """A replica's last progress, at that time; reported when a deadline has passed."""

    rank: int
    at: int


@dataclass(frozen=True)
class Returned:
    """The function returned, or ended by ``sys.exit(0)``; the process still has to end."""

    rank: int
    at: int


@dataclass(frozen=True)
class Raised:
    """A replica reports that it failed; ``words`` is the text of its exception."""

    rank: int
    at: int
    words: str = ""
    exits: bool = False
    """Whether it called ``sys.exit``, as handlers of SIGTERM do."""
    interrupted: bool = False
    """True: it is a KeyboardInterrupt, as handlers of SIGINT raise."""


@dataclass(frozen=True)
class AtPost:
    """A replica of a gang is done with its call and waits for the next one."""

    rank: int
    at: int


@dataclass(frozen=True)
class Ended:
    """A replica's process has ended; ``signal`` is the signal's number, 0 if it exited."""

    rank: int
    at: int
    exit_code: int = 0
    signal: int = 0
    words: str = ""
    """Its last lines on standard error."""


@dataclass(frozen=True)
class Interrupt:
    """The user pressed Ctrl-C."""

    at: int


@dataclass(frozen=True)
class CallOff:
    """The launcher asks to end the present call of a gang, and to keep its replicas."""

    at: int


@dataclass(frozen=True)
class Stuck:
    """A rank inside the call that is called off cannot come back: it is blocked in native code."""

    at: int


@dataclass(frozen=True)
class Leave:
    """The launcher has no further calls: the replicas of a gang end by themselves."""

    at: int


@dataclass(frozen=True)
class Stop:
    """The launcher asks to end all replicas, with time to clean up."""

    at: int


@dataclass(frozen=True)
class Kill:
    """The launcher asks to end all replicas at once."""

    at: int


@dataclass(frozen=True)
class Pause:
    """The user has stopped all replicas (Ctrl-Z), or debugs one of them."""

    at: int
    why: str = "stopped"
    """The reason; the clocks run again when each reason has had its ``Resume``."""


@dataclass(frozen=True)
class Resume:
    """One reason for a pause is over."""

    at: int
    why: str = "stopped"


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    at: int


WatchEvent = (
    Entered
    | Progress
    | Returned
    | Raised
    | AtPost
    | Ended
    | Interrupt
    | CallOff
    | Stuck
    | Leave
    | Stop
    | Kill
    | Pause
    | Resume
    | Tick
)
