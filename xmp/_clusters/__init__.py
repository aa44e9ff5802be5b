"""Who the other hosts are: read from what a scheduler has left in the environment or metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xmp._runtimes._base import Place
from xmp._types import HostFacts

__all__ = ["Placement", "placement"]


@dataclass(frozen=True)
class Placement:
    """All hosts of a job by address, those whose facts are known, and where host 0 is reached."""

    places: tuple[Place, ...]
    addresses: tuple[str, ...]
    coordinator: str = "127.0.0.1"
    port: int = 0
    leasable: bool = True
    notes: tuple[str, ...] = ()


def placement(known: Sequence[HostFacts]) -> Placement:
    """The hosts of a job, in the order of their indices."""
    places = tuple(Place(index, facts.address, facts) for index, facts in enumerate(known))
    addresses = tuple(place.address for place in places)
    if len(places) == 1:
        return Placement(places, addresses)
    return Placement(places, addresses, coordinator=addresses[0])
