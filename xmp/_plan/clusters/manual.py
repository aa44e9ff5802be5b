"""Hosts that the user names, with the variables of torch's multi-node examples."""

from __future__ import annotations

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, HostsByHand, WorldByHand

from ._base import Cluster, index_of, master, nodes

__all__ = ["by_hand", "find"]

NODE = "NODE_RANK"
NODES = "NNODES"
ADDRESS = "MASTER_ADDR"
PORT = "MASTER_PORT"
DOCUMENTED_PORT = 29500


def find(facts: HostFacts) -> Cluster | None:
    """The hosts that NNODES counts; None where it or NODE_RANK is unset.

    ``NNODES=1`` makes this host a separate job, whatever the variables of a scheduler say.
    """
    env = facts.env
    count = nodes(env)
    if count == 1:
        return Cluster(f"{NODES}=1", 0, (facts.address,), "127.0.0.1")
    index = index_of(env, NODE, NODES, count)
    if count is None or index is None:
        return None
    address, port = master(env)
    if not address:
        raise PlanError(
            f"{NODES}={count} hosts, but {ADDRESS} is not set. Set it to the address of host 0 on "
            f"every host, and {PORT} as well unless {DOCUMENTED_PORT} is free there."
        )
    addresses = tuple(address if i == 0 else "" for i in range(count))
    return Cluster(f"{NODE}={index}, {NODES}", index, addresses, address, port)


def by_hand(world: WorldByHand | HostsByHand, local: int) -> Cluster:
    """The hosts that the call names.

    ``launcher(rank_start=…, world_size=…)`` describes hosts with ``local`` replicas each.

    Raises PlanError unless the numbers are multiples of ``local``, and host 0 has an address.
    """
    if isinstance(world, HostsByHand):
        name = world.said or f"ips={','.join(world.addresses)!r}"
        addresses = world.addresses
        return Cluster(name, world.index, addresses, addresses[0], world.port, world.job)
    start, size = world.rank_start, world.world_size
    if start % local or size % local or start >= size:
        raise PlanError(
            f"rank_start={start} and world_size={size} do not fit {local} replicas on each host. "
            f"Allowed: multiples of {local}, rank_start below world_size. nprocs= changes the "
            "number on each host."
        )
    hosts = size // local
    if hosts > 1 and not world.master_ip:
        raise PlanError(
            f"world_size={size} with {local} replicas on each host is {hosts} hosts, but master_ip "
            f"is not given. Give the address of host 0 on every host, and port= unless "
            f"{DOCUMENTED_PORT} is free there."
        )
    addresses = tuple(world.master_ip if i == 0 else "" for i in range(hosts))
    name = f"rank_start={start}, world_size={size}"
    return Cluster(name, start // local, addresses, world.master_ip, world.port)
