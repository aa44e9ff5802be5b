"""The variables that replicas of every runtime get, and the inherited ones that are removed."""

from __future__ import annotations

from collections.abc import Mapping

from xmp._plan.clusters.per_device import INSIDE, NESTED
from xmp._words.types import PortNeed, ReplicaPlan

from ._base import Job, Place, Runtime, matches
from ._imports import undone, without_chips
from ._variables import IDENTITY, LEFT_OVER, MEETING_PLACES, OUTER, SECRETS

__all__ = ["STORE_PORT", "common", "dropped", "gloo_interface", "replaced", "store_need", "unset"]

STORE_PORT = 29500
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


def common(runtime: Runtime, job: Job, place: Place) -> dict[str, str]:
    """Return the variables that a host's replicas share: the size of the job, its rendezvous."""
    given, _ = undone(place.facts)
    given |= {
        **without_chips(place.facts),
        "WORLD_SIZE": str(job.world),
        "LOCAL_WORLD_SIZE": str(job.local),
        "NODE_RANK": str(place.index),
        "NNODES": str(job.hosts),
        "GROUP_RANK": str(place.index),
        "GROUP_WORLD_SIZE": str(job.hosts),
    }
    if runtime.has_store(job):
        given["MASTER_ADDR"] = job.coordinator
        given["MASTER_PORT"] = str(job.port(store_need(job)))
        given |= gloo_interface(job, place)
    given.update(_no_proxy(job, place.facts.env))
    return {k: v for k, v in given.items() if k not in runtime.removes}


def gloo_interface(job: Job, place: Place) -> dict[str, str]:
    """Return the variable that tells gloo on which interface to listen, unless the user set it.

    Otherwise gloo takes the address of the host's name, which may be any. The interface is loopback
    where all replicas are on one machine (several hosts may be its 127.0.0.x), else the one that
    leads to host 0, where it is known. NCCL chooses by itself, as it may use several interfaces.
    """
    if place.facts.env.get(GLOO_INTERFACE):
        return {}
    if job.coordinator.startswith("127."):
        return {GLOO_INTERFACE: "lo" if place.facts.platform == "linux" else "lo0"}
    return {GLOO_INTERFACE: place.facts.interface} if place.facts.interface else {}


def store_need(job: Job) -> PortNeed:
    """Return the port of torch's store on host 0: fixed where other hosts cannot know a lease."""
    asked = job.request.store_port
    fixed = asked if job.leasable else job.coordinator_port or asked or STORE_PORT
    moved_by = "" if job.leasable else "MASTER_PORT" if job.request.world is None else "port"
    return PortNeed("store", "listen", job.coordinator, fixed, STORE_PORT, moved_by=moved_by)


def _no_proxy(job: Job, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that exempt the job's own addresses from the host's proxy, if any."""
    proxies = {n for n, v in env.items() if v and n.lower().endswith("_proxy")}
    if not proxies - {"no_proxy", "NO_PROXY"}:
        return {}
    inherited = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if inherited.strip() == "*":
        return {}
    entries = [part.strip() for part in inherited.split(",") if part.strip()]
    own = ("localhost", "127.0.0.1", "::1", job.coordinator)
    value = ",".join(dict.fromkeys((*entries, *own)))
    return {"no_proxy": value, "NO_PROXY": value}


def unset(runtime: Runtime, job: Job, place: Place, given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the inherited variables that would give a replica a wrong identity.

    Those that the plan itself sets, the keys of ``given``, are not among them.
    """
    names = job.once(f"unset.{place.index}", lambda: _inherited(runtime, job, place))
    return tuple(name for name in names if name not in given)


def _inherited(runtime: Runtime, job: Job, place: Place) -> list[str]:
    patterns = (*_patterns(runtime), *runtime.removes, *_of_outer_launch(place))
    found = [name for name in place.facts.env if matches(name, patterns)]
    return sorted({*found, *undone(place.facts)[1], *_stale(job, place)})


def _patterns(runtime: Runtime) -> tuple[str, ...]:
    outer = tuple(pattern for _, patterns in OUTER for pattern in patterns)
    left = () if runtime.name == "xrt" else LEFT_OVER
    return (*IDENTITY, *SECRETS, *runtime.owned, *outer, *left)


def _of_outer_launch(place: Place) -> tuple[str, ...]:
    """Return the name of the user's variable for replicas of the outer launch, if there is one."""
    return (NESTED,) if INSIDE in place.facts.env else ()


def _stale(job: Job, place: Place) -> list[str]:
    """Return the inherited multislice variables where the job has one slice, else none."""
    if job.memo.get("slices") != 1:
        return []
    return [name for name in place.facts.env if name.startswith("MEGASCALE_")]


def dropped(runtime: Runtime, job: Job, replica: ReplicaPlan) -> tuple[str, ...]:
    """Return one note for each outer launcher whose variables are removed.

    A runtime itself adds notes on those of its own variables that it cannot use.
    """
    left = list(replica.unset)
    notes = []
    outer = ("an outer launch", IDENTITY)
    for launcher, patterns in (*OUTER, ("an older XRT configuration", LEFT_OVER), outer):
        names = [n for n in left if matches(n, patterns) and not matches(n, runtime.owned)]
        left = [name for name in left if name not in names]
        if names and not (launcher == outer[0] and job.hosts > 1):
            notes.append(f"dropped {', '.join(names)}: inherited from {launcher}")
    return tuple(notes)


def replaced(runtime: Runtime, job: Job, replica: ReplicaPlan) -> tuple[str, ...]:
    """Return a note on the addresses and ports set before the launch that the plan replaces."""
    env, given = job.places[0].facts.env, dict(replica.set)
    if INSIDE in env:
        return ()  # in a replica they are xmp's own
    # A port that xmp leases differs from the user's, even where the plan shows the same number.
    names = [n for n in MEETING_PLACES if n in env and given.get(n, env[n]) != env[n]]
    if job.leasable and "MASTER_PORT" in env and "MASTER_PORT" in given:
        names.append("MASTER_PORT")
    if not names:
        return ()
    from xmp._plan.secrets import shown  # only here are its patterns needed

    what = ", ".join(f"{name}={shown(name, env[name])}" for name in dict.fromkeys(names))
    note = f"replaced {what} (inherited): replicas meet at a port that xmp holds for them"
    own = " or pass init_method=" if runtime.family.startswith("torch") else ""
    return (f"{note}. For one of your own, set it in the function{own}",)
