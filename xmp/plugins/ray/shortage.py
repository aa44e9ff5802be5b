"""Why a cluster has no hosts for a launch: what was asked of it, and what it lacks.

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

__all__ = ["absent", "can_ever", "is_free", "may_grow", "missing", "refusal"]

_SHOWN = 8
_ACCELERATORS = {
    "GPU": ("GPU", "`ray start --num-gpus` where it finds none"),
    "TPU": ("TPU chip", "`ray start --resources` where it finds none"),
    "neuron_cores": ("Neuron core", "`ray start`"),
}
"""Ray's resources: what each is called, and how a host has it counted."""


def can_ever(need: Wanted, cluster: Sequence[ClusterHost]) -> bool:
    """Return whether the hosts that the cluster has now would do, if nothing else ran there."""
    return sum(has(host.resources, need.parts[0]) for host in _eligible(need, cluster)) >= len(
        need.bundles
    ) or isinstance(need.hosts, Nodes)


def absent(need: Wanted, cluster: Sequence[ClusterHost]) -> str:
    """Return the accelerator that hosts are asked for and none has; "" where one has it.

    Of named nodes: that one of them does not have.
    """
    wanted = [name for name in ACCELERATORS if any(part.get(name) for part in need.parts)]
    every = all if isinstance(need.hosts, Nodes) else any
    return next((n for n in wanted if not every(_have(n, need, cluster))), "")


def _have(name: str, need: Wanted, cluster: Sequence[ClusterHost]) -> list[bool]:
    """Return whether each host has some of it; of named nodes those that are asked for it."""
    if not isinstance(need.hosts, Nodes):
        return [bool(host.resources.get(name)) for host in cluster]
    asked = {node for node, part in zip(need.hosts.ids, need.parts) if part.get(name)}
    return [bool(host.resources.get(name)) for host in cluster if host.node_id in asked]


def refusal(need: Wanted, cluster: Sequence[ClusterHost], name: str) -> str:
    """Say what to do where hosts lack an accelerator that none of them will get."""
    noun, how = _ACCELERATORS[name]
    lacks = [host for host in _eligible(need, cluster) or cluster if not host.resources.get(name)]
    return (
        f"{need.said}: the runtime needs a {noun} on each host, and Ray counts none on "
        f"{_names(lacks)}. Start Ray on hosts with {noun}s ({how}), or give other hosts or another "
        "runtime"
    )


def missing(need: Wanted, cluster: Sequence[ClusterHost]) -> str:
    """Say what the cluster lacks."""
    eligible, count = _eligible(need, cluster), len(need.bundles)
    if isinstance(need.hosts, TpuSlice) and len(eligible) < count:
        slices = sorted({host.labels["ray.io/tpu-pod-type"] for host in cluster if _is_tpu(host)})
        others = f"; its TPU hosts are of {', '.join(slices)}" if slices else "; it has no TPU host"
        return f"the Ray cluster has {len(eligible)} of the slice's {count} hosts{others}"
    if len(cluster) < count:
        return f"the Ray cluster has {len(cluster)} ({_names(cluster)})"
    fitting = sum(has(host.resources, need.parts[0]) for host in eligible)
    if fitting < count and not isinstance(need.hosts, Nodes):  # those are asked for what they have
        asked = _in_words(need.parts[0])
        return f"each host is asked for {asked}, which {fitting} of {len(cluster)} hosts have"
    if is_free(need, cluster):
        return f"Ray has not given what is free there ({_asked(need)})"
    return f"what it asks of them is in use ({_asked(need)})"


def is_free(need: Wanted, cluster: Sequence[ClusterHost]) -> bool:
    """Return whether nothing else uses what hosts are asked for, as far as Ray knows already."""
    eligible = _eligible(need, cluster)
    if isinstance(need.hosts, Nodes):
        free = {host.node_id: host.free for host in eligible}
        return all(has(free.get(n, {}), part) for n, part in zip(need.hosts.ids, need.parts))
    if isinstance(need.hosts, TpuSlice) and len(need.bundles) > 1:
        head = need.hosts.head
        if not any(host.free.get(head) for host in eligible):
            return False
    return sum(has(host.free, need.parts[0]) for host in eligible) >= len(need.bundles)


def _in_words(resources: Mapping[str, float]) -> str:
    """Return text such as ``2 CPU, 4 GPU``."""
    parts = [f"{amount:g} {name}" for name, amount in resources.items() if name != "memory"]
    return ", ".join(parts) or "nothing"


def _asked(need: Wanted) -> str:
    """Say what hosts are asked for: the same of each, or of named nodes what each has."""
    asked = [_in_words(part) for part in need.parts]
    return f"{asked[0]} each" if len({*asked}) == 1 else "; ".join(asked)


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


_OF_NO_TYPE = "node_"
"""Where Ray adds no hosts, its monitor calls each node's type by this and the node's id (2.60,
format_readonly_node_type in autoscaler/_private/util.py)."""


def may_grow(ray: Any) -> bool:
    """Return whether the cluster has an autoscaler; True also where Ray does not say.

    A cluster without one has a monitor, too, which says so after some seconds.
    """
    try:
        utils: Any = importlib.import_module("ray.autoscaler.v2.utils")
        version_2 = utils.is_autoscaler_v2(fetch_from_server=True)
        return _types_of_version_2(ray) if version_2 else _has_types(_status())
    except Exception:  # none of this is a public interface of Ray
        return True


def _status() -> bytes | None:
    """Return what the monitor has written, as JSON."""
    store: Any = importlib.import_module("ray.experimental.internal_kv")
    found: bytes | None = store._internal_kv_get("__autoscaling_status")
    return found


def _has_types(status: bytes | None) -> bool:
    """Return whether some node is of a type that an autoscaler's configuration names."""
    if status is None:
        return True
    types: dict[str, str] = json.loads(status)["autoscaler_report"]["node_type_mapping"]
    return not types or any(name != _OF_NO_TYPE + node for node, name in types.items())


def _types_of_version_2(ray: Any) -> bool:
    """Do the same for the second version, which has its hosts started with their type."""
    state: Any = importlib.import_module("ray.autoscaler.v2.sdk")
    client: Any = importlib.import_module("ray._raylet").GcsClient
    address = ray.get_runtime_context().gcs_address
    nodes = state.get_cluster_resource_state(client(address=address)).node_states
    return not nodes or any(node.ray_node_type_name for node in nodes)
