"""Who the other hosts are: read from what a scheduler has left in the environment or metadata.

One file per way to know; the order of the tables below is precedence. Adding one is one file and
one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xmp._errors import PlanError
from xmp._types import HostFacts

from . import gce_tpu, gke_tpu, kubernetes, manual, openmpi, slurm, torchrun
from ._base import Cluster, Place

__all__ = ["Placement", "placement"]

Finder = Callable[[HostFacts], Cluster | None]
# torchrun runs inside Slurm steps, mpirun inside Slurm jobs; what was set by hand is meant.
GENERAL: tuple[Finder, ...] = (
    torchrun.find,
    manual.find,
    openmpi.find,
    slurm.find,
    kubernetes.find,
)
# What was set on this host is meant more than what the metadata server says of the whole slice.
TPU: tuple[Finder, ...] = (gke_tpu.find, gce_tpu.find)
INSIDE = "XMP_DEVICE"


@dataclass(frozen=True)
class Placement:
    """All hosts of a job by address, those whose facts are known, and where host 0 is reached."""

    places: tuple[Place, ...]
    addresses: tuple[str, ...]
    coordinator: str = "127.0.0.1"
    port: int = 0
    leasable: bool = True
    source: str = "this host alone"
    """What says which hosts take part."""


def placement(
    known: Sequence[HostFacts], on_tpu: bool = False, own: Cluster | None = None
) -> Placement:
    """The hosts of a job, in the order of their indices; ``on_tpu``: TPU chips will be used.

    ``own`` is what the runtime's own variables say; nothing else is asked then.
    Raises PlanError where what the hosts say of themselves does not make indices 0 to n-1.
    """
    if len(known) > 1:
        return _all_known(known, on_tpu)
    facts = known[0]
    cluster = own or _find(facts, on_tpu)
    if cluster is None or len(cluster.addresses) == 1:
        return Placement((Place(0, facts.address, facts),), (facts.address,))
    index = cluster.index
    address = cluster.addresses[index] or facts.address
    addresses = (*cluster.addresses[:index], address, *cluster.addresses[index + 1 :])
    return Placement(
        places=(Place(index, address, facts),),
        addresses=addresses,
        coordinator=cluster.coordinator,
        port=cluster.port,
        leasable=False,
        source=f"this is host {index} of {len(addresses)}, by {cluster.name}",
    )


def _find(facts: HostFacts, on_tpu: bool) -> Cluster | None:
    if INSIDE in facts.env:
        return None  # an inner launch stays on its replica's host
    general = _first(GENERAL, facts)
    if not on_tpu:
        return general
    cluster = _first(TPU, facts)
    if general is None or len(general.addresses) == 1:
        return general or cluster
    found = (len(cluster.addresses), cluster.index) if cluster else (1, 0)
    if found != (len(general.addresses), general.index):
        raise PlanError(
            f"{general.name} says host {general.index} of {len(general.addresses)}, but the TPU "
            f"runtime says worker {found[1]} of {found[0]}. Start one process on each worker of "
            "the slice, in the order of TPU_WORKER_ID."
        )
    return cluster


def _first(finders: Sequence[Finder], facts: HostFacts) -> Cluster | None:
    return next(filter(None, (find(facts) for find in finders)), None)


def _all_known(known: Sequence[HostFacts], on_tpu: bool) -> Placement:
    """Hosts in the order of the runtime's own worker ids, else in the order given."""
    clusters = [_first(TPU, facts) if on_tpu else None for facts in known]
    indices = [c.index if c and len(c.addresses) > 1 else None for c in clusters]
    if indices == [None] * len(known):
        indices = list(range(len(known)))
    if sorted(i for i in indices if i is not None) != list(range(len(known))):
        raise PlanError(
            f"the hosts say that they are workers {indices}. Allowed: each of 0 to "
            f"{len(known) - 1} once. Give the facts of every host of the slice."
        )
    order = sorted(range(len(known)), key=lambda i: indices[i] or 0)
    places = tuple(Place(n, known[i].address, known[i]) for n, i in enumerate(order))
    addresses = tuple(place.address for place in places)
    return Placement(places, addresses, addresses[0], source="facts given for each")
