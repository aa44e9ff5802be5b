"""The port at which the hosts of a launch meet: host 0 finds and holds it, and the others come."""

from __future__ import annotations

import random
from dataclasses import replace

from xmp._calls import host
from xmp._hosts import other_hosts
from xmp._os import ports
from xmp._words.errors import PortError
from xmp._words.types import HostsByHand, Request

__all__ = ["at_port", "held_port", "holding"]

_FIRST, _LAST = 10_000, 30_000
"""Linux gives ports from 32768 up to programs that ask for any (ip_local_port_range, ip(7))."""
_TRIES = 20

_latest = 0
"""The port of the launch before, where the process that connects the hosts may still rest."""


def at_port(request: Request, port: int) -> Request:
    """Return the request, with the port at which the hosts meet."""
    assert isinstance(request.world, HostsByHand)
    return replace(request, world=replace(request.world, port=port))


def held_port(request: Request) -> int:
    """Return the port of a request that ``holding`` has returned."""
    return request.world.port if isinstance(request.world, HostsByHand) else 0


def holding(request: Request) -> tuple[Request, ports.PortLease]:
    """Return the request with a port from which on all that host 0 needs is free, and held.

    That of the launch before, if it is free again: what connects the hosts need not start then.
    """
    global _latest
    known, failed = host.host_facts(), None
    for attempt in range(_TRIES):
        port = _latest if _latest and not attempt else _random_port()
        tried = at_port(request, port)
        plan = host.plan_for(tried, known)
        rests = plan.meeting is not None and other_hosts.rests_at(plan.meeting)
        try:
            lease = ports.lease(
                [need for need in plan.needs if need.name != "carrier" or not rests]
            )
        except PortError as error:
            failed = error
        else:
            _latest = port
            return tried, lease
    assert failed is not None
    raise failed


def _random_port() -> int:
    return random.SystemRandom().randrange(_FIRST, _LAST)
