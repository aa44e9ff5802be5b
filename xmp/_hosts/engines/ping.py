"""Whether the agents that wait for a launch can take one: they are asked, and must answer.

That a process exists says less: one that SIGKILL has hit may need a while to end, and one that is
stopped never goes on.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xmp._os import signals
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.hosts import Ping, Pong
from xmp._processes.system import linux

if TYPE_CHECKING:
    from .protocol import Agent

__all__ = ["all_answer"]


def all_answer(agents: Sequence[Agent], seconds: float) -> bool:
    """Return whether all of them answer within so many seconds."""
    if any(agent.is_stopped() for agent in agents):
        return False
    end = time.monotonic() + seconds
    try:
        for agent in agents:
            agent.send(Ping())
        return all(_answers(agent, end) for agent in agents)
    except Closed:
        return False


def _answers(agent: Agent, end: float) -> bool:
    # A wait ends early where a signal may have come.
    while not linux.ready(agent.fileno(), select.POLLIN, max(0.0, end - time.monotonic())):
        signals.deliver()
        if time.monotonic() >= end:
            return False
    return isinstance(agent.recv()[0], Pong)
