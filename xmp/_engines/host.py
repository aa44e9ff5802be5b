"""One host of a launch, as the driver knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmp._processes.messages.hosts import HostOver
from xmp._processes.messages.launch import Done

if TYPE_CHECKING:
    from xmp._host_words import HostFailure

    from . import Agent

__all__ = ["Host"]


class Host:
    """What has come from one agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.attempt = -1
        """The attempt that it has begun last."""
        self.done: Done | None = None
        """The last report of its supervisor in the present attempt."""
        self.verdict: HostFailure | None = None
        """How the present attempt has failed, on whichever host, as far as this one knows."""
        self.leftovers = ""
        self.over: HostOver | None = None
        """Its last message."""
        self.lost = ""
        """How its agent ended without a last message."""
        self.was_asked = False
        """Whether it ended after the driver had asked it to."""
        self.stacks: dict[int, str] | None = None
        """The answer to the last request."""
        self.preempted: bool | None = None
        """Whether its replicas end by themselves; None until it has answered."""

    def begin(self) -> None:
        """Forget the attempt before."""
        self.done, self.verdict, self.leftovers = None, None, ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.over is not None or bool(self.lost)

    @property
    def has_failed(self) -> bool:
        """Whether it has ended otherwise than well."""
        return bool(self.lost) or (self.over is not None and bool(self.over.kind))
