"""A Kubernetes Indexed Job: pods are called ``<job>-<index>`` and count from 0.

The number of pods is in no variable of theirs; the manifest has to give NNODES. Without it the pods
of an Indexed Job are jobs of their own (a sweep).
"""

from __future__ import annotations

from xmp._errors import PlanError
from xmp._types import HostFacts

from ._base import Cluster, number

__all__ = ["find"]

INDEX = "JOB_COMPLETION_INDEX"
SERVICE = "KUBERNETES_SERVICE_HOST"
NODES = "NNODES"
ADDRESS = "MASTER_ADDR"
PORT = "MASTER_PORT"


def find(facts: HostFacts) -> Cluster | None:
    """The pods of this Indexed Job; None outside one or where NNODES is not set."""
    env = facts.env
    index, count = number(env, INDEX), number(env, NODES)
    if index is None or SERVICE not in env or count is None or count < 2:
        return None
    if index >= count:
        raise PlanError(f"{INDEX}={index} does not fit {NODES}={count}. Make {NODES} completions.")
    master = env.get(ADDRESS) or _first_pod(facts.hostname, index)
    addresses = tuple(master if i == 0 else "" for i in range(count))
    name = f"Kubernetes Indexed Job ({INDEX}, {NODES})"
    return Cluster(name, index, addresses, master, number(env, PORT) or 0)


def _first_pod(hostname: str, index: int) -> str:
    """``train-3.svc`` becomes ``train-0.svc``."""
    pod, dot, domain = hostname.partition(".")
    if not pod.endswith(f"-{index}"):
        raise PlanError(
            f"{INDEX}={index}, but this pod is called {hostname!r}, so pod 0 cannot be named. Set "
            f"{ADDRESS} to the name of pod 0 in the manifest (with a headless service)."
        )
    return f"{pod[: -len(str(index))]}0{dot}{domain}"
