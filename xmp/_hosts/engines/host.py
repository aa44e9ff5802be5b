"""One host of a launch, as the driver knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmp._processes.messages import launch as messages
from xmp._processes.messages.hosts import HostCame, HostOver, HostStopped, PortsHeld
from xmp._words.record import RankPlace

if TYPE_CHECKING:
    from xmp._processes.messages.catalog import Message
    from xmp._words.host_words import HostFailure

    from .protocol import Agent

__all__ = ["Host"]

_FOR_THE_AGENT = (
    messages.CannotMake, messages.FailedFirst, messages.UnsafeToFork, messages.AtBreakpoint,
    messages.DebuggerLeft, messages.StepReached, messages.ProgressMade, HostStopped,
)  # fmt: skip
"""Reports of a supervisor on which the agent acts, as the launcher of its host."""


class Host:
    """What has come from one agent in one attempt."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.came = False
        """Whether it starts its replicas, as all hosts have come."""
        self.done: messages.Done | None = None
        """The last report of its supervisor."""
        self.over: HostOver | None = None
        """Its last message."""
        self.unloaded: messages.LoadFailed | None = None
        """Why the function or its arguments could not be loaded there."""
        self.lost = ""
        """How its agent ended without a last message."""
        self.given_up = ""
        """Why the driver has killed its agent."""
        self.was_asked = False
        """Whether it ended after the driver had asked it to."""
        self.stacks: dict[int, str] | None = None
        """The answer to the last request."""
        self.places: list[RankPlace] = []
        """Where its ranks were then."""

    def take(self, message: Message) -> bool:
        """Take in what concerns this host; return whether that is all of the message."""
        if isinstance(message, HostCame):
            self.came = True
        elif isinstance(message, HostOver):
            self.over = message
        elif isinstance(message, messages.Done):
            self.done = message
        elif isinstance(message, messages.LoadFailed):
            self.unloaded = message
        elif isinstance(message, messages.StackTexts):
            self.stacks, self.places = message
        else:
            own = (PortsHeld, messages.PreemptAnswer, messages.WaitedLong)
            return isinstance(message, (*own, *_FOR_THE_AGENT))
        return True

    @property
    def verdict(self) -> HostFailure | None:
        """How the launch has failed, on whichever host, as far as this one knows."""
        return None if self.over is None else self.over.verdict

    @property
    def leftovers(self) -> str:
        """Which processes of the launch still exist there at its end."""
        return "" if self.over is None else self.over.leftovers

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.over is not None or bool(self.lost)

    @property
    def has_failed(self) -> bool:
        """Whether it has ended otherwise than well."""
        return bool(self.lost) or (self.over is not None and bool(self.over.kind))
