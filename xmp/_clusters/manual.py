"""Hosts that the user names, with the variables of torch's multi-node examples."""

from __future__ import annotations

from dataclasses import replace

from xmp._errors import PlanError
from xmp._types import HostFacts

from ._base import Cluster, number

__all__ = ["by_hand", "find"]

NODE = "NODE_RANK"
NODES = "NNODES"
ADDRESS = "MASTER_ADDR"
PORT = "MASTER_PORT"


def find(facts: HostFacts) -> Cluster | None:
    """The hosts that NNODES counts; None where it or NODE_RANK is unset.

    ``NNODES=1`` makes this host a separate job, whatever the variables of a scheduler say.
    """
    env = facts.env
    count, index = number(env, NODES), number(env, NODE)
    if count == 1:
        return Cluster(f"{NODES}=1", 0, (facts.address,), "127.0.0.1")
    if count is None or index is None:
        return None
    if index >= count:
        raise PlanError(f"{NODE}={index} does not fit {NODES}={count}. Allowed: 0 to {count - 1}.")
    master = env.get(ADDRESS)
    if not master:
        raise PlanError(
            f"{NODES}={count} hosts, but {ADDRESS} is not set. Set it to the address of host 0 on "
            f"every host, and {PORT} as well unless 29500 is free there."
        )
    addresses = tuple(master if i == 0 else "" for i in range(count))
    return Cluster(f"{NODE}={index}, {NODES}", index, addresses, master, number(env, PORT) or 0)


def by_hand(
    facts: HostFacts, *, rank_start: int, world_size: int, local: int, master: str, port: int
) -> HostFacts:
    """The facts with the hosts that ``launcher(rank_start=…, world_size=…)`` describes.

    Every host runs ``local`` replicas; raises PlanError unless the numbers are multiples of it.
    """
    if rank_start % local or world_size % local or rank_start >= world_size:
        raise PlanError(
            f"rank_start={rank_start} and world_size={world_size} do not fit {local} replicas on "
            f"each host. Allowed: multiples of {local}, rank_start below world_size."
        )
    given = {NODE: rank_start // local, NODES: world_size // local, ADDRESS: master, PORT: port}
    texts = {name: str(value) for name, value in given.items()}
    return replace(facts, env={**facts.env, **texts})
