"""The meeting place of several hosts' launchers: a port of host 0, beside those of the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from xmp._words.errors import PlanError
from xmp._words.host_words import HostMeeting
from xmp._words.types import PortNeed

from ._base import Job
from ._environment import STORE_PORT

__all__ = ["carrier_need", "check", "meeting"]

CARRIER = "carrier"
FROM_FIRST = 1000
"""Distance from the port fixed for host 0, just above which runtimes have theirs, to this port."""
MOST_PORT = 65535


def meeting(job: Job) -> HostMeeting | None:
    """Return where the launchers of several hosts meet, as the plan of one of them needs it.

    None for a job of one host, and for a plan from the facts of all hosts, which starts nothing.
    """
    if job.leasable:
        return None
    need = carrier_need(job)
    place = job.places[0].index, job.hosts, need.address, job.port(need)
    return HostMeeting(*place, job.name, job.open, job.addresses)


def carrier_need(job: Job) -> PortNeed:
    """Return the launchers' port on host 0, which all hosts compute alike before they can ask."""
    first = _first(job)
    above = first + FROM_FIRST <= MOST_PORT
    port = first + FROM_FIRST if above else first - FROM_FIRST
    place = f"{FROM_FIRST} {'above' if above else 'below'} port {first}"
    return PortNeed(
        CARRIER,
        "listen",
        job.coordinator.strip("[]"),
        port,
        port,
        purpose=f"the launchers of all hosts meet there, {place}",
        moved_by="MASTER_PORT" if job.request.world is None else "port",
    )


def check(job: Job, needs: Sequence[PortNeed]) -> None:
    """Raise PlanError where something else on this host needs the port where launchers meet."""
    if job.leasable:
        return
    carrier = carrier_need(job)
    for need in needs:
        if need.name != CARRIER and need.port == carrier.port:
            raise PlanError(
                f"port {carrier.port} is needed twice: for {need.name!r}, and because "
                f"{carrier.purpose}. Give all hosts another {carrier.moved_by}."
            )


def _first(job: Job) -> int:
    return job.coordinator_port or job.request.store_port or STORE_PORT
