"""A Kubernetes Indexed Job: pods are called ``<job>-<index>`` and count from 0.

Kubernetes sets no variable with the number of pods: the manifest must set NNODES. Without it each
pod of an Indexed Job is a separate job (a sweep).
"""

from __future__ import annotations

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, master, nodes, number

__all__ = ["find"]

INDEX = "JOB_COMPLETION_INDEX"
SERVICE = "KUBERNETES_SERVICE_HOST"
NODES = "NNODES"
ADDRESS = "MASTER_ADDR"


def find(facts: HostFacts) -> Cluster | None:
    """The pods of this Indexed Job; None outside one or where NNODES is not set."""
    env = facts.env
    index, count = number(env, INDEX), nodes(env)
    if index is None or SERVICE not in env or count is None or count < 2:
        return None
    if index >= count:
        raise PlanError(
            f"{INDEX}={index} does not fit {NODES}={count}. Set {NODES} to the Job's completions."
        )
    address, port = master(env)
    address = address or _first_pod(facts.hostname, index)
    addresses = tuple(address if i == 0 else "" for i in range(count))
    name = f"Kubernetes Indexed Job ({INDEX}, {NODES})"
    return Cluster(name, index, addresses, address, port)


def _first_pod(hostname: str, index: int) -> str:
    """``train-3.svc`` becomes ``train-0.svc``."""
    pod, dot, domain = hostname.partition(".")
    if not pod.endswith(f"-{index}"):
        raise PlanError(
            f"{INDEX}={index}, but this pod is called {hostname!r}, so pod 0's name is not known. "
            f"Set {ADDRESS} to it in the manifest (with a headless service)."
        )
    return f"{pod[: -len(str(index))]}0{dot}{domain}"
