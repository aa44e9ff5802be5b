"""The Ray cluster of this process: connect to it, and see what it has."""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import Any, NamedTuple

from xmp import _log
from xmp._errors import PlanError

from .session import own_sigterm, refuse_forked

__all__ = ["ClusterHost", "connect", "driver_host", "hosts_of", "refuse_without_ray"]


class ClusterHost(NamedTuple):
    """A node of the cluster that lives."""

    node_id: str
    name: str
    address: str
    resources: dict[str, float]
    port: int
    """At which its raylet listens."""


def refuse_without_ray() -> None:
    """Raise PlanError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise PlanError(
            'engine="ray": Ray is not installed here. Run: pip install "xmp-spawn[ray]" (and on '
            'every host of the cluster), or give engine="local" to try the program on this machine'
        )


def connect() -> Any:
    """Ray, connected: to the cluster of RAY_ADDRESS or of the user's ``ray.init``, else a new one.

    Without a cluster Ray starts one on this machine, which ends with this process.
    """
    import ray

    refuse_forked(ray)
    if not ray.is_initialized():
        _log.debug("ray.init(): RAY_ADDRESS=%s", os.environ.get("RAY_ADDRESS", "not set"))
        with own_sigterm():
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
    return ray


def hosts_of(ray: Any) -> list[ClusterHost]:
    """The nodes that live."""
    return [
        ClusterHost(
            node["NodeID"],
            node["NodeName"],
            node["NodeManagerAddress"],
            dict(node["Resources"]),
            node["NodeManagerPort"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def driver_host(ray: Any) -> ClusterHost:
    """The node that this process is connected to, which is on its own host."""
    own = ray.get_runtime_context().get_node_id()
    return next(host for host in hosts_of(ray) if host.node_id == own)
