"""The Ray cluster of this process: connect to it, and see what it has."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from typing import Any, NamedTuple

from xmp import _log
from xmp._errors import PlanError, StartError

from .session import own_sigterm, refuse_forked

__all__ = ["ClusterHost", "connect", "driver_host", "hosts_of", "refuse_without_ray"]


class ClusterHost(NamedTuple):
    """A node of the cluster that lives."""

    node_id: str
    """In hexadecimal, as ``ray.nodes()`` has it."""
    name: str
    address: str
    resources: dict[str, float]
    """What it has: ``{"CPU": 8.0, "GPU": 2.0, "memory": …}``; memory in bytes."""
    labels: dict[str, str]
    free: dict[str, float]
    """What of it no placement group, actor or task holds at the moment."""
    port: int = 0
    """At which its raylet listens."""

    def __str__(self) -> str:
        return self.name if self.name == self.address else f"{self.name} ({self.address})"


def refuse_without_ray() -> None:
    """Raise PlanError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise PlanError(
            'engine="ray": Ray is not installed here. Run: pip install "xmp-spawn[ray]" (and on '
            'every host of the cluster), or give engine="local" to try the program on this machine'
        )


def connect() -> Any:
    """Ray, connected: to the cluster of RAY_ADDRESS or of the user's ``ray.init``, else a new one.

    Without a cluster Ray starts one on this machine, which ends with this process. Raises
    StartError where the cluster cannot be reached, PlanError where it has another Ray or Python.
    """
    import ray

    refuse_forked(ray)
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "")
    _log.debug("ray.init(): RAY_ADDRESS=%s", address or "not set")
    try:
        with own_sigterm():
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise StartError(
            f'engine="ray": no Ray cluster answers (RAY_ADDRESS={address!r}): {error}. Check the '
            "address, or unset it to start Ray on this machine"
        ) from error
    except RuntimeError as error:  # Ray 2.60: check_version_info in _private/utils.py
        if "Version mismatch" not in str(error):
            raise
        text = " ".join(str(error).split())
        raise PlanError(f'engine="ray": the cluster has another Ray or Python. {text}') from error
    return ray


def hosts_of(ray: Any) -> list[ClusterHost]:
    """The nodes that live."""
    free = _free_resources()
    return [
        ClusterHost(
            node["NodeID"],
            node["NodeName"],
            node["NodeManagerAddress"],
            dict(node["Resources"]),
            dict(node.get("Labels") or {}),
            free.get(node["NodeID"], dict(node["Resources"])),
            node["NodeManagerPort"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _free_resources() -> dict[str, dict[str, float]]:
    """Of each node. Ray's public functions know the sum of all nodes alone (Ray 2.60)."""
    try:
        state: Any = importlib.import_module("ray._private.state")
        found: dict[str, dict[str, float]] = state.available_resources_per_node()
    except (ImportError, AttributeError):
        return {}
    return found


def driver_host(ray: Any) -> ClusterHost:
    """The node that this process is connected to, which is on its own host."""
    own = ray.get_runtime_context().get_node_id()
    return next(host for host in hosts_of(ray) if host.node_id == own)
