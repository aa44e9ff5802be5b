"""The Ray cluster of this process: connect to it, and see what it has."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from xmp._os import log, signals
from xmp._os.names import connected
from xmp._words.errors import PlanError, StartError, brief

from .session import own_sigterm, refuse_forked

__all__ = [
    "ClusterHost",
    "connect",
    "connected_by_program",
    "driver_host",
    "hosts_of",
    "is_installed",
    "refuse_without_ray",
]

_HOST_AND_PORT = re.compile(r"\[?(?P<host>[^\[\]/]+)\]?:(?P<port>[0-9]{1,5})")
_ANSWER = 10.0
"""Seconds for a connection."""


class ClusterHost(NamedTuple):
    """A node of the cluster that lives."""

    node_id: str
    """In hexadecimal, as ``ray.nodes()`` has it."""
    name: str
    """As errors and prefixes have it: what its user calls it, or its host name."""
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


def is_installed() -> bool:
    """Return whether there is a Ray to import, and not only a folder of that name."""
    spec = importlib.util.find_spec("ray")
    return spec is not None and spec.origin is not None


def refuse_without_ray() -> None:
    """Raise PlanError where Ray is not installed."""
    if not is_installed():
        raise PlanError(
            'engine="ray": Ray is not installed here. Run: pip install ray (and on every host of '
            'the cluster), or give engine="local" to try the program on this machine',
            code="XMP-H06",
        )


def connect() -> Any:
    """Return Ray, connected to the cluster of RAY_ADDRESS or of ``ray.init``, else to a new one.

    Without a cluster Ray starts one on this machine, which ends with this process. Raises
    StartError where the cluster cannot be reached, PlanError where it has another Ray or Python.
    """
    import ray

    refuse_forked(ray)
    if ray.is_initialized():
        client: Any = importlib.import_module("ray.util.client")
        _refuse_client(client.ray.is_connected())
        return ray
    address = os.environ.get("RAY_ADDRESS", "")
    _refuse_client(address.startswith("ray://"))
    _refuse_silent(address)
    log.debug("ray.init(): RAY_ADDRESS=%s", address or "not set")
    try:
        with signals.as_usual(), own_sigterm():  # it may wait for minutes
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise StartError(_unreachable(address, error), code="XMP-H06") from error
    except ValueError as error:
        raise PlanError(
            f'engine="ray": RAY_ADDRESS={brief(address)}: {error}', code="XMP-H06"
        ) from error
    except RuntimeError as error:  # Ray 2.60: check_version_info in _private/utils.py
        if "Version mismatch" not in str(error):
            raise
        text = " ".join(str(error).split())
        raise PlanError(
            f'engine="ray": the cluster has another Ray or Python. {text}', code="XMP-H06"
        ) from error
    _own_jobs.add(ray.get_runtime_context().get_job_id())
    return ray


def _refuse_client(used: bool) -> None:
    """Raise PlanError for Ray Client: it has no beats, and its objects go through a proxy."""
    if used:
        raise PlanError(
            'engine="ray": this process is connected by Ray Client (an address with ray://), which '
            "does not pass on what xmp needs of Ray. Run the program on a host of the cluster: "
            "`ray job submit -- python program.py`, or there with RAY_ADDRESS=auto",
            code="XMP-H06",
        )


def _refuse_silent(address: str) -> None:
    """Raise StartError where nothing listens: Ray itself looks for more than 100 s (Ray 2.60)."""
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None:  # "auto", "local", a name of a cluster
        return
    try:
        with signals.as_usual():
            connected(found["host"], int(found["port"]), _ANSWER).close()
    except OSError as error:
        if signals.from_handler(error):
            raise
        raise StartError(_unreachable(address, error), code="XMP-H06") from error


def _unreachable(address: str, error: BaseException) -> str:
    return (
        f'engine="ray": no Ray cluster answers at RAY_ADDRESS={address!r} ({error}). Correct it, '
        "or unset it to use the cluster of this machine, or start one here"
    )


_own_jobs: set[str] = set()
"""The connections to clusters that xmp has made."""


def connected_by_program() -> bool:
    """Return whether the program itself has called ``ray.init``."""
    import ray

    return ray.is_initialized() and ray.get_runtime_context().get_job_id() not in _own_jobs


def hosts_of(ray: Any) -> list[ClusterHost]:
    """Return the nodes that live, by their names: they have no order in Ray (2.60)."""
    free = _free_resources()
    found = [
        ClusterHost(
            node["NodeID"],
            _name(node),
            node["NodeManagerAddress"],
            dict(node["Resources"]),
            dict(node.get("Labels") or {}),
            free.get(node["NodeID"], dict(node["Resources"])),
            node["NodeManagerPort"],
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda host: (host.name, host.address, host.node_id))


def _name(node: Mapping[str, Any]) -> str:
    """Return the name of ``ray start --node-name``, without which Ray's is the address (2.60)."""
    name, address = str(node["NodeName"]), node["NodeManagerAddress"]
    return name if name != address else str(node.get("NodeManagerHostname") or address)


def _free_resources() -> dict[str, dict[str, float]]:
    """Return those of each node: Ray's public functions know the sum of all (Ray 2.60)."""
    try:
        state: Any = importlib.import_module("ray._private.state")
        found: dict[str, dict[str, float]] = state.available_resources_per_node()
    except (ImportError, AttributeError):
        return {}
    return found


def driver_host(ray: Any) -> ClusterHost:
    """Return the node that this process is connected to, which is on its own host."""
    own = ray.get_runtime_context().get_node_id()
    return next(host for host in hosts_of(ray) if host.node_id == own)
