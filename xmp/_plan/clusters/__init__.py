"""Finds the hosts of a job in the variables of a launcher or in the cloud's metadata.

``launchers`` has a row for each launcher, and the other modules what a row cannot say. The order of
the tables below is precedence.

Tests: ``tests/plans``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from . import announced, kubernetes, lsf, manual, per_device, placed, slurm, tpu_slices
from ._base import MOST_PORT, PORTS, Cluster, Place
from ._host_texts import HOST, is_loopback, is_no_hosts_own, split_port
from .launchers import BY_HAND, INSIDE

__all__ = ["Placement", "is_each_host_itself", "placement"]

Finder = Callable[[HostFacts], Cluster | None]
# An inner launcher comes before the one that it runs in: torchrun in a Slurm step or a pod, mpirun
# in a job of LSF or Slurm, which starts mpirun's own daemons by blaunch or srun. jsrun sets Open
# MPI's variables too, and says more. What the user has set by hand counts more than a scheduler's.
GENERAL: tuple[Finder, ...] = (
    placed.find_torchrun,
    manual.find,
    placed.find,
    lsf.find,
    slurm.find,
    kubernetes.find_kubeflow,
    kubernetes.find_indexed,
    placed.find_foreign,  # last: to list distributions takes milliseconds
)
SCHEDULERS = tuple(find for find in GENERAL if find is not manual.find)
# Variables of this host count more than the metadata of the whole slice.
TPU: tuple[Finder, ...] = (tpu_slices.find_gke, tpu_slices.find_gce)
SEVERAL_ON_ONE_MACHINE = re.compile(r"127\.0\.0\.(?!1$)\d+")
"""Addresses by which one machine plays several hosts; 127.0.0.1 is written there by mistake."""


@dataclass(frozen=True)
class Placement:
    """All hosts of a job, and the address at which they reach host 0."""

    places: tuple[Place, ...]
    """The hosts whose facts are known."""
    addresses: tuple[str, ...]
    """Of all hosts, in the order of their indices; empty where an address is not known."""
    coordinator: str = "127.0.0.1"
    """The address of host 0 for the others."""
    port: int = 0
    """The port that was fixed for host 0; 0 when none was."""
    leasable: bool = True
    """Whether all hosts know each other's leased ports."""
    job: str = ""
    """What its launcher calls the job, the same on all hosts; empty where it has no such name."""
    open: bool = False
    """Whether nothing says which host this is: it is placed as host 0, which it may not be."""
    source: str = "this host alone"
    """What determined the hosts, in words."""


def placement(
    known: Sequence[HostFacts],
    on_tpu: bool = False,
    own: Cluster | None = None,
    by_hand: Cluster | None = None,
) -> Placement:
    """Return the hosts of a job, in the order of their indices.

    ``on_tpu``: TPU chips will be used. ``own``, from the runtime's own variables, overrides every
    scheduler, and ``by_hand``, from the arguments of the call, those of all schedulers. Raise
    PlanError unless the indices of the hosts are 0 to n-1, each once, where variables announce
    hosts that the job would not include, where the runtime's own variables or the TPU's describe
    other hosts than the user does, and in a process that another launcher started for one device.
    """
    if len(known) > 1:
        return _all_known(known, on_tpu)
    facts = known[0]
    if by_hand is None:
        per_device.refuse(facts.env)
    if own and by_hand and _numbers(own) != _numbers(by_hand):
        raise PlanError(
            f"{_said(by_hand)}, but {_said(own)}. Give the same numbers, or leave one out.",
            code="XMP-P08",
        )
    is_open = False
    if by_hand is not None and by_hand.index < 0:
        by_hand, is_open = _with_index(by_hand, facts, on_tpu, own)
    cluster = own or _find(facts, on_tpu, by_hand)
    if cluster is None or len(cluster.addresses) == 1:
        return Placement((Place(0, facts.address, facts),), (facts.address,))
    _refuse_loopback(cluster)
    _check_meeting_place(cluster)
    index = cluster.index
    address = cluster.addresses[index] or facts.address
    addresses = (*cluster.addresses[:index], address, *cluster.addresses[index + 1 :])
    return Placement(
        places=(Place(index, address, facts),),
        addresses=addresses,
        coordinator=cluster.coordinator,
        port=cluster.port,
        leasable=False,
        job=cluster.job,
        open=is_open,
        source=f"this is host {index} of {len(addresses)}, by {cluster.name}",
    )


def _with_index(
    by_hand: Cluster, facts: HostFacts, on_tpu: bool, own: Cluster | None
) -> tuple[Cluster, bool]:
    """Return the hosts that the user counts, with the index of this one by a TPU or a scheduler.

    Where there is none it is 0, and True says that this host gets its index by arrival.
    """
    count = len(by_hand.addresses)
    said = {BY_HAND.hosts: str(count), BY_HAND.address: by_hand.coordinator}
    # An Indexed Job needs both.
    counted = replace(facts, env={**facts.env, **said})
    found = own or (_first(TPU, facts) if on_tpu else _first(SCHEDULERS, counted))
    if found is None or len(found.addresses) == 1:
        if on_tpu:
            raise PlanError(
                f"{by_hand.name}: the hosts of a TPU have worker ids, by which they are wired, and "
                "this one has none. Start one process on each worker of a slice, without --nnodes",
                code="XMP-P11",
            )
        return replace(by_hand, index=0), True
    if len(found.addresses) != count:
        raise PlanError(
            f"{by_hand.name}: {count} hosts, but {_said(found)}. Give the same number, or "
            "--node-rank, which counts more",
            code="XMP-P08",
        )
    return replace(by_hand, index=found.index), False


def _find(facts: HostFacts, on_tpu: bool, by_hand: Cluster | None) -> Cluster | None:
    if INSIDE in facts.env and by_hand is None:
        return None  # a launch inside a replica stays on that replica's host
    general = by_hand or _first(GENERAL, facts)
    cluster = _first(TPU, facts) if on_tpu else None
    if general is None and (cluster is None or len(cluster.addresses) == 1):
        announced.refuse({**facts.env, **facts.host_files})
    if not on_tpu or general is None or len(general.addresses) == 1:
        return general or cluster
    found = _numbers(cluster) if cluster else (1, 0)
    if found != _numbers(general):
        what = "Name the hosts" if by_hand else "Start one process on each worker"
        raise PlanError(
            f"{_said(general)}, but the TPU runtime says worker {found[1]} of {found[0]}. {what} "
            "of the whole slice, in the order of TPU_WORKER_ID.",
            code="XMP-P08",
        )
    return cluster


def _numbers(cluster: Cluster) -> tuple[int, int]:
    """Return how many hosts there are, and which of them this is."""
    return len(cluster.addresses), cluster.index


def _said(cluster: Cluster) -> str:
    return f"{cluster.name} says host {cluster.index} of {len(cluster.addresses)}"


def is_each_host_itself(address: str) -> bool:
    """Return whether ``address`` reaches no other host; 127.0.0.2 and up may be hosts of a test."""
    return is_loopback(address) and not SEVERAL_ON_ONE_MACHINE.fullmatch(address)


def _refuse_loopback(cluster: Cluster) -> None:
    host = cluster.coordinator
    if is_each_host_itself(host):
        raise PlanError(
            f"{cluster.name}: the job has {len(cluster.addresses)} hosts, but the address of host "
            f"0 is {host}, which is each host itself. {_set_address(cluster)} to an address of "
            f"host 0 that the others reach, or {_alone(cluster)} to launch on this host alone.",
            code="XMP-H04",
        )


def _set_address(cluster: Cluster) -> str:
    return f"Set {'master_ip= or ' if cluster.by_call else ''}MASTER_ADDR"


def _alone(cluster: Cluster) -> str:
    return "leave world_size= out" if cluster.by_call else "NNODES=1"


def _check_meeting_place(cluster: Cluster) -> None:
    """Raise PlanError for what is no host, or no port, wherever it comes from."""
    if cluster.port > MOST_PORT:
        raise PlanError(
            f"{_said(cluster)}, and that the hosts meet at port {cluster.port}. Allowed: {PORTS}.",
            code="XMP-P08",
        )
    host, port = split_port(cluster.coordinator)
    # Without an address the XRT runtime says which variable of its own has none.
    if cluster.coordinator and (port or not HOST.fullmatch(host)):
        raise PlanError(
            f"{_said(cluster)}, but the address of host 0 is {cluster.coordinator!r}. Allowed: an "
            "address, or a name with 1 to 63 letters between two dots, without a port, which "
            f"{'port=' if cluster.by_call else 'MASTER_PORT'} sets.",
            code="XMP-H04",
        )
    if is_no_hosts_own(cluster.coordinator):
        raise PlanError(
            f"{_said(cluster)}, but the address of host 0 is {cluster.coordinator}, which no host "
            f"has to itself (multicast or broadcast). {_set_address(cluster)} to an address of "
            "host 0.",
            code="XMP-H04",
        )


def _first(finders: Sequence[Finder], facts: HostFacts) -> Cluster | None:
    return next(filter(None, (find(facts) for find in finders)), None)


def _all_known(known: Sequence[HostFacts], on_tpu: bool) -> Placement:
    """Return the hosts in the order of the TPU worker ids, else in the order given."""
    clusters = [_first(TPU, facts) if on_tpu else None for facts in known]
    indices = [c.index if c and len(c.addresses) > 1 else None for c in clusters]
    if indices == [None] * len(known):
        indices = list(range(len(known)))
    if sorted(i for i in indices if i is not None) != list(range(len(known))):
        raise PlanError(
            f"the given hosts are workers {indices}. Allowed: each of 0 to {len(known) - 1} once. "
            "Give the facts of every host of the slice.",
            code="XMP-P11",
        )
    order = sorted(range(len(known)), key=lambda i: indices[i] or 0)
    places = tuple(Place(n, known[i].address, known[i]) for n, i in enumerate(order))
    addresses = tuple(place.address for place in places)
    return Placement(places, addresses, addresses[0], source="facts given for each")
