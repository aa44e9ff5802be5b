"""Why a cluster has no hosts for a launch: what it has, what was asked of it, who holds what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cluster import ClusterHost
from .placement import Nodes, Wanted, has
from .slices import TpuSlice

__all__ = ["can_ever", "explained", "in_short"]

_SHOWN = 8


def can_ever(need: Wanted, cluster: Sequence[ClusterHost]) -> bool:
    """Whether the hosts that the cluster has now would do, if nothing else ran there."""
    return sum(has(host.resources, need.parts[0]) for host in _eligible(need, cluster)) >= len(
        need.bundles
    ) or isinstance(need.hosts, Nodes)


def in_short(need: Wanted, cluster: Sequence[ClusterHost]) -> str:
    """What the cluster lacks, for a person who may wait for it."""
    eligible, count = _eligible(need, cluster), len(need.bundles)
    if isinstance(need.hosts, TpuSlice) and len(eligible) < count:
        slices = sorted({host.labels["ray.io/tpu-pod-type"] for host in cluster if _is_tpu(host)})
        others = f"; its TPU hosts are of {', '.join(slices)}" if slices else "; it has no TPU host"
        return f"the Ray cluster has {len(eligible)} of the slice's {count} hosts{others}"
    if len(cluster) < count:
        return f"the Ray cluster has {len(cluster)} ({_names(cluster)})"
    fitting = sum(has(host.resources, need.parts[0]) for host in eligible)
    if fitting < count:
        asked = words(need.parts[0])
        return f"each host is asked for {asked}, which {fitting} of {len(cluster)} hosts have"
    return f"what it asks of them is in use ({words(need.parts[0])} each)"


def explained(need: Wanted, cluster: Sequence[ClusterHost], groups: Mapping[str, Any]) -> str:
    """All that is known of it; ``groups``: the placement groups of others, as Ray's table."""
    eligible = _eligible(need, cluster) or list(cluster)
    names = dict.fromkeys(name for part in need.parts for name in part if name != "memory")
    if isinstance(need.hosts, TpuSlice):
        names[need.hosts.head] = None
    lines = [f"Asked of each host: {words(need.parts[0])}"]
    lines += [f"The cluster has {len(cluster)} host" + ("s" if len(cluster) != 1 else "")]
    lines += [f"  {host}: {_state(host, names)}" for host in cluster[:_SHOWN]]
    if len(cluster) > _SHOWN:
        lines.append(f"  and {len(cluster) - _SHOWN} more")
    for group in groups.values():
        taken = _taken(group, names, eligible)
        if taken:
            name = group["name"] or group["placement_group_id"]
            lines.append(f'Held by the placement group "{name}": {_listed(taken)}')
    others = _by_others(eligible, names, groups)
    if others:
        lines.append(f"Held by tasks or actors outside placement groups: {_listed(others)}")
    return "\n".join(lines)


def words(resources: Mapping[str, float]) -> str:
    """``2 CPU, 4 GPU``."""
    parts = [f"{amount:g} {name}" for name, amount in resources.items() if name != "memory"]
    return ", ".join(parts) or "nothing"


def _eligible(need: Wanted, cluster: Sequence[ClusterHost]) -> list[ClusterHost]:
    if isinstance(need.hosts, TpuSlice):
        return [host for host in cluster if need.hosts.is_of(host)]
    if isinstance(need.hosts, Nodes):
        return [host for host in cluster if host.node_id in need.hosts.ids]
    return list(cluster)


def _is_tpu(host: ClusterHost) -> bool:
    return "ray.io/tpu-pod-type" in host.labels


def _names(cluster: Sequence[ClusterHost]) -> str:
    shown = ", ".join(str(host) for host in cluster[:_SHOWN])
    return f"{shown} and {len(cluster) - _SHOWN} more" if len(cluster) > _SHOWN else shown


def _state(host: ClusterHost, names: Mapping[str, None]) -> str:
    parts = []
    for name in names:
        total, free = host.resources.get(name, 0), host.free.get(name, 0)
        if total:
            parts.append(f"{free:g} of {total:g} {name} free")
        elif not name.endswith("-head"):  # only the first worker of a slice has that
            parts.append(f"no {name}")
    return ", ".join(parts) or "alive"


def _taken(
    group: Mapping[str, Any], names: Mapping[str, None], hosts: Sequence[ClusterHost]
) -> list[tuple[ClusterHost, dict[str, float]]]:
    """What a placement group of others holds of these resources on these hosts."""
    where = {host.node_id: host for host in hosts}
    found = []
    for index, node in group["bundles_to_node_id"].items():
        taken = {n: amount for n, amount in group["bundles"][index].items() if n in names}
        if node in where and any(taken.values()):
            found.append((where[node], taken))
    return found


def _by_others(
    hosts: Sequence[ClusterHost], names: Mapping[str, None], groups: Mapping[str, Any]
) -> list[tuple[ClusterHost, dict[str, float]]]:
    """What is in use on these hosts and belongs to no placement group."""
    found = []
    for host in hosts:
        used = {n: host.resources.get(n, 0) - host.free.get(n, 0) for n in names}
        for group in groups.values():
            for _, taken in _taken(group, names, [host]):
                used = {n: amount - taken.get(n, 0) for n, amount in used.items()}
        rest = {n: amount for n, amount in used.items() if amount > 0}
        if rest:
            found.append((host, rest))
    return found


def _listed(taken: Sequence[tuple[ClusterHost, dict[str, float]]]) -> str:
    shown = "; ".join(f"{words(amounts)} on {host}" for host, amounts in taken[:_SHOWN])
    return f"{shown} and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else shown
