"""How far the clocks of the hosts in a Ray cluster are ahead: their actors read them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import RayAgent

__all__ = ["measure"]

_ROUNDS = 4
"""A call of an actor takes 1 to 2 ms (Ray 2.60), and the shortest one counts."""
_FRESH = 20.0
"""Seconds in which a crystal goes wrong by less than such a round trip."""
_LONGEST = 5.0


def measure(agents: Sequence[RayAgent]) -> None:
    """Measure the clocks of these hosts, unless that was done a moment ago.

    A host that does not answer keeps what is known: the launch sees that it is lost.
    """
    late = [agent for agent in agents if not agent.clock.is_fresh(_FRESH)]
    for _ in range(_ROUNDS):
        if not _measured_once(late):
            return


def _measured_once(agents: Sequence[RayAgent]) -> bool:
    import ray

    asked: dict[Any, tuple[RayAgent, int]] = {}
    for agent in agents:
        moment = time.monotonic_ns()
        asked[agent.actor.clock.remote()] = agent, moment
    waiting = list(asked)
    while waiting:
        came, waiting = ray.wait(waiting, num_returns=1, timeout=_LONGEST)
        answered = time.monotonic_ns()
        if not came:
            return False
        agent, moment = asked[came[0]]
        try:
            agent.clock.measured(moment, ray.get(came[0]), answered)
        except ray.exceptions.RayError:
            return False
    return True
