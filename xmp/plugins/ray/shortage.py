"""Why a cluster has no hosts for a launch: what it has, what was asked of it, who holds what.

And whether something adds hosts to the cluster where a launch needs some.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .cluster import ClusterHost
from .placement import ACCELERATORS, Nodes, Wanted, has
from .slices import TpuSlice

__all__ = ["absent", "can_ever", "explained", "in_short", "is_free", "may_grow", "refusal"]

_SHOWN = 8
_NAMED = {"GPU": "GPU", "TPU": "TPU chip", "neuron_cores": "Neuron core"}
_START_WITH = {
    "GPU": "Start Ray on hosts with GPUs (`ray start`, with --num-gpus where it finds none)",
    "TPU": "Start Ray on TPU hosts (`ray start`, with --resources where it finds no chips)",
    "neuron_cores": "Start Ray on hosts with Neuron cores (`ray start`)",
}


def can_ever(need: Wanted, cluster: Sequence[ClusterHost]) -> bool:
    """Whether the hosts that the cluster has now would do, if nothing else ran there."""
    return sum(has(host.resources, need.parts[0]) for host in _eligible(need, cluster)) >= len(
        need.bundles
    ) or isinstance(need.hosts, Nodes)


def absent(need: Wanted, cluster: Sequence[ClusterHost]) -> str:
    """The accelerator that hosts are asked for and none has; "" where at least one has it.

    Of named nodes: that one of them does not have.
    """
    wanted = [name for name in ACCELERATORS if any(part.get(name) for part in need.parts)]
    every = all if isinstance(need.hosts, Nodes) else any
    return next((n for n in wanted if not every(_have(n, need, cluster))), "")


def _have(name: str, need: Wanted, cluster: Sequence[ClusterHost]) -> list[bool]:
    """Whether each host has some of it; of named nodes those that are asked for it."""
    if not isinstance(need.hosts, Nodes):
        return [bool(host.resources.get(name)) for host in cluster]
    asked = {node for node, part in zip(need.hosts.ids, need.parts) if part.get(name)}
    return [bool(host.resources.get(name)) for host in cluster if host.node_id in asked]


def refusal(need: Wanted, cluster: Sequence[ClusterHost], name: str) -> str:
    """What to do where the cluster has none of an accelerator, and will have none."""
    if isinstance(need.hosts, Nodes):
        lacks = [host for host in _eligible(need, cluster) if not host.resources.get(name)]
        return (
            f"{need.said}: the runtime needs a {_NAMED[name]} on each host, and Ray counts none on "
            f"{_names(lacks)}. {_START_WITH[name]}, name other nodes, or give another runtime"
        )
    return (
        f"{need.said}: each host is asked for {words(need.parts[0])}, and Ray counts no "
        f"{_NAMED[name]} on any host of the cluster ({_names(cluster)}), which has no autoscaler "
        f"that could add one. {_START_WITH[name]}, or give another runtime"
    )


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
    if fitting < count and not isinstance(need.hosts, Nodes):  # those are asked for what they have
        asked = words(need.parts[0])
        return f"each host is asked for {asked}, which {fitting} of {len(cluster)} hosts have"
    if is_free(need, cluster):
        return f"Ray has not given what is free there ({_asked(need)})"
    return f"what it asks of them is in use ({_asked(need)})"


def is_free(need: Wanted, cluster: Sequence[ClusterHost]) -> bool:
    """Whether nothing else uses what hosts are asked for, as far as Ray knows already."""
    eligible = _eligible(need, cluster)
    if isinstance(need.hosts, Nodes):
        free = {host.node_id: host.free for host in eligible}
        return all(has(free.get(n, {}), part) for n, part in zip(need.hosts.ids, need.parts))
    if isinstance(need.hosts, TpuSlice) and len(need.bundles) > 1:
        head = need.hosts.head
        if not any(host.free.get(head) for host in eligible):
            return False
    return sum(has(host.free, need.parts[0]) for host in eligible) >= len(need.bundles)


def explained(need: Wanted, cluster: Sequence[ClusterHost], groups: Mapping[str, Any]) -> str:
    """All that is known of it; ``groups``: the placement groups of others, as Ray's table."""
    eligible = _eligible(need, cluster) or list(cluster)
    names = dict.fromkeys(name for part in need.parts for name in part if name != "memory")
    if isinstance(need.hosts, TpuSlice):
        names[need.hosts.head] = None
    lines = [f"Asked of each host: {_asked(need, '')}"]
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


def _asked(need: Wanted, each: str = " each") -> str:
    """What hosts are asked for: the same of each, or of named nodes what each has."""
    asked = [words(part) for part in need.parts]
    return f"{asked[0]}{each}" if len({*asked}) == 1 else "; ".join(asked)


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


_OF_NO_TYPE = "node_"
"""Where Ray adds no hosts, its monitor calls each node's type by this and the node's id (2.60,
format_readonly_node_type in autoscaler/_private/util.py)."""


def may_grow(ray: Any) -> bool:
    """Whether the cluster has an autoscaler; True also where Ray does not say.

    A cluster without one has a monitor, too, which says so after some seconds.
    """
    try:
        utils: Any = importlib.import_module("ray.autoscaler.v2.utils")
        version_2 = utils.is_autoscaler_v2(fetch_from_server=True)
        return _types_of_version_2(ray) if version_2 else _has_types(_status())
    except Exception:  # none of this is a public interface of Ray
        return True


def _status() -> bytes | None:
    """What the monitor has written: as JSON."""
    store: Any = importlib.import_module("ray.experimental.internal_kv")
    found: bytes | None = store._internal_kv_get("__autoscaling_status")
    return found


def _has_types(status: bytes | None) -> bool:
    """Whether some node is of a type that an autoscaler's configuration names."""
    if status is None:
        return True
    types: dict[str, str] = json.loads(status)["autoscaler_report"]["node_type_mapping"]
    return not types or any(name != _OF_NO_TYPE + node for node, name in types.items())


def _types_of_version_2(ray: Any) -> bool:
    """The same of the second version, which has its hosts started with their type."""
    state: Any = importlib.import_module("ray.autoscaler.v2.sdk")
    client: Any = importlib.import_module("ray._raylet").GcsClient
    address = ray.get_runtime_context().gcs_address
    nodes = state.get_cluster_resource_state(client(address=address)).node_states
    return not nodes or any(node.ray_node_type_name for node in nodes)
