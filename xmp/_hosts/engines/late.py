"""Hosts of a launch that do not answer: their agents are killed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from xmp._os import log

from .host import Host

__all__ = ["LateHosts"]

_OTHERS_WAIT = 20.0
"""Seconds beside the grace in which all hosts end after the first: the carrier gives a host up
after 15."""


class LateHosts:
    """Since when the hosts should end, and which of them are stopped."""

    def __init__(self) -> None:
        self.ends: float | None = None
        """When agents that have not ended by then are killed."""

    @property
    def were_asked(self) -> bool:
        """Whether the hosts have been asked to end."""
        return self.ends is not None

    def asked_to_end(self, seconds: float) -> None:
        """The hosts have so long from now on, if they were not asked before."""
        if self.ends is None:
            self.ends = time.monotonic() + seconds + _OTHERS_WAIT

    def kill(self, hosts: Sequence[Host]) -> None:
        """Kill the agents of a launch that should have ended, and those that are stopped."""
        living = [host for host in hosts if not host.is_over]
        for host in living:
            if host.is_silent(time.monotonic()):
                host.agent.kill()
        if self.ends is None or time.monotonic() < self.ends:
            return
        for host in living:
            log.warning("the agent of %s does not answer: killed", host.agent.name)
            host.agent.kill()

    def kill_now(self, hosts: Sequence[Host]) -> None:
        """Kill all agents that have not ended."""
        self.ends = time.monotonic()
        self.kill(hosts)
