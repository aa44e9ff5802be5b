"""The Ray cluster of this process: connect to it, and see what it has."""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import Any, NamedTuple

from xmp import _log
from xmp._errors import PlanError

__all__ = ["ClusterHost", "connect", "hosts_of", "is_installed", "refuse_without_ray"]


class ClusterHost(NamedTuple):
    """A node of the cluster that lives."""

    node_id: str
    name: str
    address: str
    resources: dict[str, float]


def is_installed() -> bool:
    """Whether there is a Ray to import, and not only a folder of that name beside the script."""
    spec = importlib.util.find_spec("ray")
    return spec is not None and spec.origin is not None


def refuse_without_ray() -> None:
    """Raise PlanError where Ray is not installed."""
    if not is_installed():
        raise PlanError(
            'engine="ray": Ray is not installed here. Run: pip install "xmp-spawn[ray]" (and on '
            'every host of the cluster), or give engine="local" to try the program on this machine'
        )


def connect() -> Any:
    """Ray, connected: to the cluster of RAY_ADDRESS or of the user's ``ray.init``, else a new one.

    Without a cluster Ray starts one on this machine, which ends with this process.
    """
    import ray

    if not ray.is_initialized():
        _log.debug("ray.init(): RAY_ADDRESS=%s", os.environ.get("RAY_ADDRESS", "not set"))
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
    return ray


def hosts_of(ray: Any) -> list[ClusterHost]:
    """The nodes that live."""
    return [
        ClusterHost(
            node["NodeID"], node["NodeName"], node["NodeManagerAddress"], dict(node["Resources"])
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
