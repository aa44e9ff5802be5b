"""TPU slices in a Ray cluster: ``hosts="v6e:4x4"``, their hosts, and the order of these.

Ray 2.60 gives each node of a slice labels and resources (_private/accelerators/tpu.py): the name of
its slice, its worker id, the pod type ("v6e-16") and, where the platform says it, the topology; the
first worker alone has one ``TPU-v6e-16-head``. Who holds that has the slice: ``ray.util.tpu`` and
Ray Train take it before they take hosts, and so does xmp.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from xmp._plan.numbers import is_number
from xmp._plan.topology import (
    GENERATIONS,
    HOST_SHAPES,
    Generation,
    generation_named,
    generation_of_type,
    parse_topology,
    slice_of,
)
from xmp._words.errors import PlanError, brief
from xmp._words.types import HostFacts

from .cluster import ClusterHost

__all__ = [
    "TpuSlice",
    "in_worker_order",
    "intact",
    "kinds",
    "names_of_workers",
    "parsed",
    "refuse_mixed",
    "resources_of",
    "with_variables",
]

NAME, WORKER = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
TYPE, TOPOLOGY = "ray.io/tpu-pod-type", "ray.io/tpu-topology"
_EXAMPLE = 'a generation and a topology, as in "v6e:4x4" or "v4:2x2x4"'
_NAMES = "TPU_WORKER_HOSTNAMES"
_ID = "TPU_WORKER_ID"


@dataclass(frozen=True)
class TpuSlice:
    """A slice by its generation and topology."""

    generation: Generation
    topology: str

    def __str__(self) -> str:
        return f"{self.generation.name}:{self.topology}"

    @property
    def chips(self) -> int:
        """Of all its hosts."""
        return prod(parse_topology(self.topology) or (0,))

    def hosts(self, cluster: Sequence[ClusterHost]) -> int:
        """Return how many hosts it has."""
        return self.chips // self.chips_per_host([host for host in cluster if self.is_of(host)])

    @property
    def pod_type(self) -> str:
        """As Ray calls it: "v6e-16"; "v7x-16" where libtpu says "tpu7x-16"."""
        label = re.sub("^tpu", "v", self.generation.label)
        return f"{label}-{self.chips * self.generation.number_per_chip}"

    @property
    def head(self) -> str:
        """The resource of its first worker."""
        return f"TPU-{self.pod_type}-head"

    def is_of(self, host: ClusterHost) -> bool:
        """Return whether a host belongs to such a slice."""
        labels = host.labels
        known = labels.get(TOPOLOGY, self.topology)
        return labels.get(TYPE) == self.pod_type and known == self.topology

    def chips_per_host(self, cluster: Sequence[ClusterHost]) -> int:
        """Return what its hosts in the cluster have, or would have.

        A type does not say it: v6e-8 is one host of eight chips, or two of four. Ray's own guess is
        four for each slice of several hosts.
        """
        found = {int(host.resources.get("TPU", 0)) // _per_chip() for host in cluster}
        fitting = [n for n in found if n in HOST_SHAPES and self.chips % n == 0]
        usual = 8 if self.chips == 8 and 8 in self.generation.sizes else 4
        return max(fitting, default=min(self.chips, usual))

    def selector(self, cluster: Sequence[ClusterHost]) -> dict[str, str]:
        """Return labels of its hosts, with the topology where the cluster's hosts have it."""
        known = any(TOPOLOGY in host.labels for host in cluster if self.is_of(host))
        return {TYPE: self.pod_type, **({TOPOLOGY: self.topology} if known else {})}


def resources_of(chips: int) -> float:
    """Return chips as Ray counts them."""
    return float(chips * _per_chip())


def _per_chip() -> int:
    text = os.environ.get("RAY_TPU_RESOURCE_PER_CHIP", "")  # Ray 2.60: 2 where it counts 7x's cores
    return max(1, int(text)) if is_number(text) else 1


def parsed(text: str) -> TpuSlice:
    """Return the slice that ``hosts=`` names. Raise PlanError for what is none."""
    name, colon, topology = text.strip().lower().partition(":")
    if not colon:
        raise PlanError(
            f"hosts={brief(text)} is no TPU slice. Allowed: a whole number from 1 up, a list of "
            f"node ids, or {_EXAMPLE}",
            code="XMP-H05",
        )
    generation = generation_named(name) or generation_of_type(name)
    if generation is None:
        names = ", ".join(each.name for each in GENERATIONS)
        raise PlanError(
            f"hosts={brief(text)}: no TPU generation is called {brief(name)}. Allowed: {names}",
            code="XMP-P11",
        )
    sides = 2 if generation.flat else 3
    box = parse_topology(topology)
    if box is None or topology.count("x") + 1 != sides:
        example = "4x4" if generation.flat else "2x2x4"
        raise PlanError(
            f"hosts={brief(text)}: {brief(topology)} is no topology of {generation.name}. Allowed: "
            f'{sides} sides in chips, as in "{generation.name}:{example}"',
            code="XMP-P11",
        )
    own = HOST_SHAPES[min(prod(box), 4)] if prod(box) in (1, 2, 4) else HOST_SHAPES[4]
    try:
        slice_of(generation, box, own)
    except PlanError:
        raise PlanError(
            f"hosts={brief(text)}: hosts of {own[0]}x{own[1]} chips cannot form a slice of "
            f"{topology}. Allowed: sides that are multiples of these",
            code="XMP-P11",
        ) from None
    return TpuSlice(generation, topology)


def kinds(cluster: Sequence[ClusterHost]) -> set[TpuSlice]:
    """Return the kinds of slices that the cluster's hosts say they belong to."""
    found = set()
    for host in cluster:
        generation = generation_of_type(host.labels.get(TYPE, ""))
        topology = host.labels.get(TOPOLOGY, "")
        if generation is not None and parse_topology(topology) is not None:
            found.add(TpuSlice(generation, topology))
    return found


def refuse_mixed(nodes: Sequence[ClusterHost], cluster: Sequence[ClusterHost], said: str) -> None:
    """Raise PlanError for hosts of several slices, each of which has several hosts."""
    names = [node.labels.get(NAME, "") for node in cluster]
    several = {name for name in names if name and names.count(name) > 1}
    given = sorted({node.labels.get(NAME, "") for node in nodes} & several)
    if len(given) > 1:
        raise PlanError(
            f"{said}: Ray has given hosts of the TPU slices {', '.join(given)}, which do not reach "
            'each other. Name a slice, as in hosts="v6e:4x4", or give runtime="cpu"',
            code="XMP-H07",
        )


def intact(wanted: TpuSlice, cluster: Sequence[ClusterHost]) -> dict[str, list[ClusterHost]]:
    """Return the complete slices of this kind in the cluster, by name; free ones come first."""
    chips = wanted.chips_per_host([host for host in cluster if wanted.is_of(host)])
    hosts: dict[str, list[ClusterHost]] = {}
    for host in cluster:
        if wanted.is_of(host) and NAME in host.labels:
            hosts.setdefault(host.labels[NAME], []).append(host)
    ids = [str(number) for number in range(wanted.chips // chips)]
    whole = {
        name: found
        for name, found in hosts.items()
        if sorted(ids) == sorted(host.labels.get(WORKER, "") for host in found)
    }
    return dict(sorted(whole.items(), key=lambda item: (not _is_free(item[1]), item[0])))


def _is_free(hosts: Sequence[ClusterHost]) -> bool:
    return all(host.free.get("TPU", 0) >= host.resources.get("TPU", 0) for host in hosts)


def in_worker_order(known: Sequence[HostFacts], said: str, must: bool) -> list[int]:
    """Return the positions of hosts in the order of their TPU worker ids.

    ``must``: they are a slice, whose ids are 0 to n-1, or PlanError says what they are. Otherwise
    hosts that are none stay as they are.
    """
    ids = [_worker_id(facts) for facts in known]
    if sorted(each for each in ids if each is not None) == list(range(len(known))):
        return sorted(range(len(known)), key=lambda position: ids[position] or 0)
    if must and len(known) > 1:
        found = ", ".join(f"{facts.hostname}: {each}" for facts, each in zip(known, ids))
        raise PlanError(
            f"hosts={said!r}: the hosts that Ray has given are TPU workers {found}. They must be "
            f"0 to {len(known) - 1}, each once: check {_ID} where `ray start` was called",
            code="XMP-P11",
        )
    return list(range(len(known)))


def _worker_id(facts: HostFacts) -> int | None:
    text = facts.env.get(_ID) or facts.metadata.get("agent-worker-number", "")
    return int(text) if is_number(text) else None


def names_of_workers(
    known: Sequence[HostFacts], nodes: Sequence[ClusterHost], cluster: Sequence[ClusterHost]
) -> dict[str, str]:
    """Return ``TPU_WORKER_HOSTNAMES`` of the slice of these hosts, where they do not have it.

    GKE and the metadata server list a slice's hosts; elsewhere Ray's labels do, with all hosts of
    the slice, also those that the launch does not have.
    """
    names = {node.labels.get(NAME, "") for node in nodes}
    if len(names) != 1 or "" in names or any(_lists_workers(facts) for facts in known):
        return {}
    workers = [node for node in cluster if node.labels.get(NAME) in names]
    order = in_worker_order([_as_worker(node) for node in workers], "", must=False)
    ids = [workers[position].labels.get(WORKER) for position in order]
    if len(workers) < 2 or ids != [str(number) for number in range(len(workers))]:
        return {}
    return {_NAMES: ",".join(workers[position].address for position in order)}


def _lists_workers(facts: HostFacts) -> bool:
    return bool(facts.env.get(_NAMES) or facts.metadata.get("worker-network-endpoints"))


def _as_worker(node: ClusterHost) -> HostFacts:
    return HostFacts(env={_ID: node.labels.get(WORKER, "")})


def with_variables(facts: HostFacts, variables: Mapping[str, str]) -> HostFacts:
    """Return the facts as an agent has them in a launch that sets these."""
    return replace(facts, env={**facts.env, **variables}) if variables else facts
