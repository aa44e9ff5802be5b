"""Where replicas meet, at torch's store, and where the launchers of several hosts do."""

from __future__ import annotations

from collections.abc import Sequence

from xmp._words.errors import PlanError
from xmp._words.host_words import HostMeeting
from xmp._words.types import PortNeed

from ._base import Job, Place

__all__ = ["STORE_PORT", "carrier_need", "check_meeting", "gloo_interface", "meeting", "store_need"]

STORE_PORT = 29500
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
CARRIER = "carrier"
FROM_FIRST = 1000
"""Distance from the port fixed for host 0, just above which runtimes have theirs, to this port."""
MOST_PORT = 65535


def store_need(job: Job) -> PortNeed:
    """Return the port of torch's store on host 0: fixed where other hosts cannot know a lease."""
    asked = job.request.store_port
    fixed = asked if job.leasable else job.coordinator_port or asked or STORE_PORT
    moved_by = "" if job.leasable else "MASTER_PORT" if job.request.world is None else "port"
    return PortNeed("store", "listen", job.coordinator, fixed, STORE_PORT, moved_by=moved_by)


def gloo_interface(job: Job, place: Place) -> dict[str, str]:
    """Return the variable that tells gloo on which interface to listen, unless the user set it.

    Otherwise gloo takes the address of the host's name, which may be any. The interface is loopback
    where all replicas are on one machine (several hosts may be its 127.0.0.x), else the one that
    leads to host 0, where it is known. NCCL chooses by itself, as it may use several interfaces.
    """
    if place.facts.env.get(GLOO_INTERFACE):
        return {}
    if job.coordinator.startswith("127."):
        return {GLOO_INTERFACE: "lo" if place.facts.platform == "linux" else "lo0"}
    return {GLOO_INTERFACE: place.facts.interface} if place.facts.interface else {}


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


def check_meeting(job: Job, needs: Sequence[PortNeed]) -> None:
    """Raise PlanError where something else on this host needs the port where launchers meet."""
    if job.leasable:
        return
    carrier = carrier_need(job)
    for need in needs:
        if need.name != CARRIER and need.port == carrier.port:
            raise PlanError(
                f"port {carrier.port} is needed twice: for {need.name!r}, and because "
                f"{carrier.purpose}. Give all hosts another {carrier.moved_by}.",
                code="XMP-O01",
            )


def _first(job: Job) -> int:
    return job.coordinator_port or job.request.store_port or STORE_PORT
