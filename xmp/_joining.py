"""Which host of its job this is, where neither the user nor a scheduler says so.

Host 0 is the one that can bind the ports at which all meet: their address is its own, and no other
launcher of the machine has come before it. It gives the others their indices, by arrival.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from . import _other_hosts, _ports, _processes
from ._errors import PortError, StartError
from ._host import host_facts, plan_for
from ._other_hosts import seconds_to_meet
from ._own_address import facing
from ._types import HostsByHand, Request

if TYPE_CHECKING:
    from ._ports import PortLease
    from ._processes import Call

__all__ = ["joined"]

_CARRIER = "carrier"


@_processes.standard_numbers_taken()
def joined(request: Request, call: Call) -> tuple[Request, PortLease | None]:
    """The request with this host's index, and on host 0 the ports that its launch needs.

    The request as it is where the index is known, or a scheduler or a TPU knows it. Raises
    StartError where no host 0 has come within ``start_timeout``.
    """
    if not isinstance(request.world, HostsByHand) or request.world.index >= 0:
        return request, None
    called = time.monotonic_ns()
    known = host_facts()
    draft = plan_for(request, known)
    if draft.meeting is None or not draft.meeting.open:
        return request, None
    known = facing(known, draft.meeting, seconds_to_meet(call.limits, called))
    draft = plan_for(request, known)
    held, index = None, 0
    try:
        # That of the launchers first: who has it is host 0, even where another port is not free.
        held = _ports.lease(sorted(draft.needs, key=lambda need: need.name != _CARRIER))
    except PortError as error:
        if error._elsewhere != _CARRIER:
            raise
        try:
            index = _other_hosts.place(draft, call, known, called)
        except StartError as refused:
            raise StartError(
                f"{refused}\nHost 0 is the host of the job that can bind the port of "
                f"--rdzv-endpoint. This one cannot: {error}"
            ) from None
    return replace(request, world=replace(request.world, index=index)), held
