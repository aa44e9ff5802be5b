"""Which hosts of the cluster a launch takes, and what it takes of each.

Ray counts a host's processors and accelerators and gives each to one at a time. A launch takes the
accelerators that its replicas may use, and a processor for each replica; where it has more replicas
than the host has processors it takes all of these, as xmp has no such limit.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from xmp._hosts.engines import count_of
from xmp._words.errors import PlanError, brief
from xmp._words.types import Request

from .cluster import ClusterHost
from .slices import TpuSlice, kinds, parsed, resources_of

__all__ = ["ACCELERATORS", "Hosts", "Nodes", "Wanted", "checked", "has", "wanted"]

MOST = 4096
"""Hosts of one launch: as many as their launchers' beats are measured for (docs/scale.md). Ray
looks for minutes at a placement group of a million bundles (2.60)."""
_SHOWN = 8
_ALLOWED = ', a list of node ids, or a TPU slice as in "v6e:4x4"'
_OF_RUNTIME = {
    **dict.fromkeys(("cuda", "rocm", "xpu"), "GPU"),
    "torch_tpu": "TPU",
    "neuron": "neuron_cores",
}
"""The resource that a runtime cannot do without."""
_NO_DEVICES = ("cpu", "fake")
_WHOLE = ("TPU", "neuron_cores")
"""Taken as a host has them: one process may open a TPU host's chips at a time, and the masks that
Ray makes of them describe no slice."""
ACCELERATORS = ("GPU", *_WHOLE)
_ANYWHERE = {"memory": 1.0}
"""Each node of Ray has memory (in bytes), and a bundle may not be empty."""
_MASKED = ("GPU", "neuron_cores")


@dataclass(frozen=True)
class Nodes:
    """Nodes of Ray by their ids, in the order of the hosts."""

    ids: tuple[str, ...]


Hosts = int | Nodes | TpuSlice
"""What ``hosts=`` asks for."""


@dataclass(frozen=True)
class Wanted:
    """What a launch asks for."""

    hosts: Hosts
    said: str = field(compare=False)
    """``hosts=`` for errors."""
    bundles: tuple[tuple[tuple[str, float], ...], ...]
    """Of each host, by the names of Ray's resources."""
    selector: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Labels of each host, for a slice."""
    runtime_env: str = ""
    """What Ray prepares there, as JSON."""
    for_tpus: bool = field(default=False, compare=False)
    """Whether the user has named a TPU slice."""

    @property
    def has_masks(self) -> bool:
        """Whether Ray gives an actor some devices of its host, for as long as the actor lives."""
        return any(name in _MASKED for bundle in self.bundles for name, _ in bundle)

    @property
    def key(self) -> Hashable:
        """Equal for two launches that can use the same agents."""
        return self.hosts, self.runtime_env, self.bundles if self.has_masks else ()

    @property
    def parts(self) -> list[dict[str, float]]:
        """The bundles of a placement group."""
        return [dict(bundle) for bundle in self.bundles]


def checked(hosts: object) -> Hosts:
    """Return what ``hosts=`` asks for, in whichever cluster. Raise PlanError, TypeError."""
    if isinstance(hosts, str):
        return parsed(hosts)
    if not isinstance(hosts, (list, tuple)):
        count = count_of(hosts, _ALLOWED)
        if count > MOST:
            raise PlanError(
                f"hosts={count}: a launch takes {MOST} hosts at most. Give fewer", code="XMP-H05"
            )
        return count
    for each in hosts:
        if not isinstance(each, str):
            kind = type(each).__name__
            raise TypeError(f"hosts={brief(hosts)}: a node id is a str in hexadecimal, not {kind}")
    if not hosts:
        raise PlanError(
            f"hosts={hosts!r} names no node. Give a whole number from 1 up{_ALLOWED}",
            code="XMP-H05",
        )
    ids = [each.strip().lower() for each in hosts]
    double = sorted({each for each in ids if ids.count(each) > 1})
    if double:
        raise PlanError(
            f"hosts= has {brief(double)} more than once. Name each node once", code="XMP-H05"
        )
    if len(ids) > MOST:
        raise PlanError(
            f"hosts= names {len(ids)} nodes; a launch takes {MOST} at most", code="XMP-H05"
        )
    return Nodes(tuple(ids))


def wanted(hosts: Hosts, request: Request, cluster: Sequence[ClusterHost]) -> Wanted:
    """Return what a launch asks of this cluster. Raise PlanError for nodes that it lacks."""
    if isinstance(hosts, Nodes):
        chosen = [_node(each, cluster) for each in hosts.ids]
        each_own = tuple(_bundle(request, [host], 1) for host in chosen)
        return Wanted(hosts, f"hosts=[{len(chosen)} node ids]", each_own)
    if isinstance(hosts, TpuSlice):
        return replace(_of_slice(hosts, request, cluster), for_tpus=True)
    bundle = _bundle(request, cluster, hosts)
    if "TPU" in dict(bundle) and hosts > 1:
        fitting = [each for each in kinds(cluster) if each.hosts(cluster) == hosts]
        if len(fitting) == 1:  # or Ray would give hosts of several slices
            return replace(_of_slice(fitting[0], request, cluster), said=f"hosts={hosts}")
    return Wanted(hosts, f"hosts={hosts}", (bundle,) * hosts)


def _node(given: str, cluster: Sequence[ClusterHost]) -> ClusterHost:
    for host in cluster:
        if host.node_id == given:
            return host
    existing = ", ".join(f"{host.node_id} ({host})" for host in cluster[:_SHOWN])
    more = f" and {len(cluster) - _SHOWN} more" if len(cluster) > _SHOWN else ""
    raise PlanError(
        f"hosts= has {brief(given)}: the Ray cluster has no such living node. Allowed: "
        f"{existing}{more}. `ray.nodes()` lists them as NodeID",
        code="XMP-H05",
    )


def _of_slice(hosts: TpuSlice, request: Request, cluster: Sequence[ClusterHost]) -> Wanted:
    if request.runtime in _NO_DEVICES or _OF_RUNTIME.get(request.runtime or "", "TPU") != "TPU":
        raise PlanError(
            f"hosts='{hosts}' with runtime={request.runtime!r}: this runtime uses no TPU. Give a "
            "runtime that does, or a number of hosts",
            code="XMP-P06",
        )
    of_kind = [host for host in cluster if hosts.is_of(host)]
    chips = hosts.chips // hosts.hosts(cluster)
    bundle = {"TPU": resources_of(chips)}
    processors = _processors(request, chips, of_kind, len(of_kind))
    if processors:
        bundle["CPU"] = processors
    selector = tuple(hosts.selector(cluster).items())
    each = (tuple(bundle.items()),) * (hosts.chips // chips)
    return Wanted(hosts, f"hosts='{hosts}'", each, selector)


def _bundle(
    request: Request, cluster: Sequence[ClusterHost], count: int
) -> tuple[tuple[str, float], ...]:
    """Return what each of ``count`` hosts of the cluster is asked for."""
    bundle: dict[str, float] = {}
    for name in ACCELERATORS:
        amount = _devices(name, request, cluster, count)
        if amount:
            bundle[name] = amount
    fitting = [host for host in cluster if has(host.resources, bundle)] or cluster
    on_cores = request.runtime in (None, "cpu")  # a replica for each
    devices = int(max(bundle.values(), default=sys.maxsize if on_cores else 1))
    processors = _processors(request, devices, fitting, count)
    if processors:
        bundle["CPU"] = processors
    return tuple((bundle or _ANYWHERE).items())


def _devices(name: str, request: Request, cluster: Sequence[ClusterHost], count: int) -> float:
    """Return how many accelerators of this kind."""
    needed = _OF_RUNTIME.get(request.runtime or "")
    if request.runtime in _NO_DEVICES or needed not in (None, name):
        return 0
    most = _most(name, cluster, count)
    replicas = _replicas(request)
    if name in _WHOLE or request.devices is not None:
        return max(most, 1.0 if needed else 0)
    if replicas is None:
        _refuse_different(name, cluster, count)
        return max(most, 1.0 if needed else 0)
    return float(replicas) if needed else min(most, replicas)


def _processors(
    request: Request, devices: int, cluster: Sequence[ClusterHost], count: int
) -> float:
    """Return a processor for each replica, and no more than the hosts have."""
    return float(min(_replicas(request) or devices, int(_most("CPU", cluster, count))))


def _replicas(request: Request) -> int | None:
    """Return the replicas of each host, where the call says how many."""
    if request.devices is not None:
        return len(request.devices)
    return None if request.nprocs == -1 else request.nprocs


def _most(name: str, cluster: Sequence[ClusterHost], count: int) -> float:
    """Return the largest number that so many hosts have; that all have, where they are fewer."""
    numbers = sorted((int(host.resources.get(name, 0)) for host in cluster), reverse=True)
    return float(numbers[min(count, len(numbers)) - 1]) if numbers else 0


def _refuse_different(name: str, cluster: Sequence[ClusterHost], count: int) -> None:
    """Raise PlanError where the best hosts differ, and no number of replicas is given."""
    best = sorted(cluster, key=lambda host: -host.resources.get(name, 0))[:count]
    if not best:
        return
    first, last = best[0], best[-1]
    more, fewer = (int(host.resources.get(name, 0)) for host in (first, last))
    if more != fewer and fewer:
        raise PlanError(
            f"hosts={count} without nprocs=: {first} has {more} {name}s and {last} has {fewer}, "
            f"and each host runs as many replicas as the others. Give nprocs={fewer}, or name "
            "hosts that are alike by their node ids",
            code="XMP-H03",
        )


def has(resources: dict[str, float], bundle: dict[str, float]) -> bool:
    """Return whether these resources suffice."""
    return all(resources.get(name, 0) >= amount for name, amount in bundle.items())
