"""Whether something adds hosts to the cluster where a launch needs some."""

from __future__ import annotations

import importlib
import json
from typing import Any

__all__ = ["may_grow"]

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
