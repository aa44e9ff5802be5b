"""The index of this host in its job, where neither the user nor a scheduler gives it.

Host 0 is the one that can bind the ports at which all hosts meet: their address is its own, and no
other launcher of the machine has bound them first. It numbers the others by arrival.
"""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from xmp import _processes
from xmp._calls.host import host_facts, plan_for
from xmp._os import ports
from xmp._words.errors import PortError, StartError
from xmp._words.types import HostFacts, HostsByHand, JobPlan, Request

from . import other_hosts
from .other_hosts import seconds_to_meet
from .own_address import facing

if TYPE_CHECKING:
    from xmp._os.ports import PortLease
    from xmp._processes import Call

__all__ = ["joined"]

_CARRIER = "carrier"
_OWN_SECONDS, _ASK = 30.0, 5.0
"""Seconds for which another launcher of this machine is asked for an index, and seconds of one
attempt: that launcher may be about to end."""


@_processes.standard_numbers_taken()
def joined(request: Request, call: Call) -> tuple[Request, PortLease | None]:
    """Return the request with this host's index, and on host 0 the ports that its launch needs.

    Return the request unchanged if a scheduler or a TPU knows the index. Raises StartError if no
    host 0 has come within ``start_timeout``.
    """
    assert isinstance(request.world, HostsByHand)
    called = time.monotonic_ns()
    known = host_facts()
    draft = plan_for(request, known)
    if draft.meeting is None or not draft.meeting.open:
        return request, None
    seconds = seconds_to_meet(call.settings.limits, called)
    known = facing(known, draft.meeting, seconds)
    draft = plan_for(request, known)
    # The launchers' port first: the one that holds it is host 0, even if another port is taken.
    draft = replace(draft, needs=tuple(sorted(draft.needs, key=lambda n: n.name != _CARRIER)))
    index, held = _index(draft, call, known, time.monotonic(), seconds)
    return replace(request, world=replace(request.world, index=index)), held


def _index(
    draft: JobPlan, call: Call, known: HostFacts, begun: float, seconds: float
) -> tuple[int, PortLease | None]:
    """Return this host's index, found within ``seconds``, and on host 0 the ports."""
    while True:
        try:
            return 0, ports.lease(draft.needs)
        except PortError as error:
            if error._elsewhere != _CARRIER:
                raise
            taken = error
        left = max(0.1, begun + seconds - time.monotonic())
        own = _has_the_address(taken)
        try:
            return other_hosts.place(draft, call, known, min(left, _ASK) if own else left), None
        except StartError as error:
            if own and time.monotonic() - begun < min(seconds, _OWN_SECONDS):
                continue  # an earlier launch of this machine may have ended
            raise StartError(
                f"{error}\nHost 0 is the host of the job that can bind the port of "
                f"--rdzv-endpoint. This one cannot: {taken._plain}"
            ) from None


def _has_the_address(taken: PortError) -> bool:
    """Return whether only the port is taken: then host 0 is on this machine, or there is none."""
    cause = taken.__cause__
    return cause is None or getattr(cause, "errno", 0) == errno.EADDRINUSE
