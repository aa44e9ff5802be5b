"""The variables that every runtime's replicas have alike, and those that are taken away."""

from __future__ import annotations

from collections.abc import Mapping

from xmp._types import HostFacts, PortNeed, ReplicaPlan

from ._base import Job, Place, Runtime, matches
from ._variables import IDENTITY, OUTER

__all__ = ["common", "dropped", "store_need", "unset"]

STORE_PORT = 29500


def common(runtime: Runtime, job: Job, place: Place, local: int) -> dict[str, str]:
    """Who a replica is, in torch's words, and what keeps its traffic on this host."""
    given = {
        "RANK": str(place.index * job.local + local),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(job.world),
        "LOCAL_WORLD_SIZE": str(job.local),
        "NODE_RANK": str(place.index),
        "NNODES": str(job.hosts),
        "GROUP_RANK": str(place.index),
        "GROUP_WORLD_SIZE": str(job.hosts),
    }
    if runtime.store:
        given["MASTER_ADDR"] = job.coordinator
        given["MASTER_PORT"] = str(job.port(store_need(job)))
        if job.hosts == 1 and "GLOO_SOCKET_IFNAME" not in place.facts.env:
            given["GLOO_SOCKET_IFNAME"] = "lo" if place.facts.platform == "linux" else "lo0"
    given.update(_no_proxy(job, place.facts.env))
    return given


def store_need(job: Job) -> PortNeed:
    """The port of torch's store on host 0; a fixed one where a lease cannot be told to others."""
    fixed = 0 if job.leasable else job.coordinator_port or STORE_PORT
    return PortNeed("store", "listen", job.coordinator, fixed, STORE_PORT)


def _no_proxy(job: Job, env: Mapping[str, str]) -> dict[str, str]:
    """Our own addresses exempted from the proxy, where the host has one at all."""
    proxies = {n for n, v in env.items() if v and n.lower().endswith("_proxy")}
    if not proxies - {"no_proxy", "NO_PROXY"}:
        return {}
    inherited = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if inherited.strip() == "*":
        return {}
    entries = [part.strip() for part in inherited.split(",") if part.strip()]
    ours = ("localhost", "127.0.0.1", "::1", job.coordinator)
    value = ",".join(dict.fromkeys((*entries, *ours)))
    return {"no_proxy": value, "NO_PROXY": value}


def unset(runtime: Runtime, facts: HostFacts, given: Mapping[str, str]) -> tuple[str, ...]:
    """The inherited variables that would tell a replica it is somebody else."""
    outer = tuple(pattern for _, patterns in OUTER for pattern in patterns)
    patterns = (*IDENTITY, *runtime.owned, *outer)
    return tuple(sorted(n for n in facts.env if n not in given and matches(n, patterns)))


def dropped(runtime: Runtime, replica: ReplicaPlan) -> tuple[str, ...]:
    """One note for each outer launcher whose variables the replicas do not see."""
    left = list(replica.unset)
    notes = []
    for launcher, patterns in (*OUTER, ("an outer launch", (*IDENTITY, *runtime.owned))):
        names = [name for name in left if matches(name, patterns)]
        left = [name for name in left if name not in names]
        if names:
            notes.append(f"dropped {', '.join(names)}: inherited from {launcher}")
    return tuple(notes)
