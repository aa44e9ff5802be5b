"""Hosts that the user names, with the variables of torch's multi-node examples."""

from __future__ import annotations

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, HostsByHand, WorldByHand

from ._base import Cluster, index_of, master, nodes, only_first
from .launchers import BY_HAND

__all__ = ["by_hand", "find"]

DOCUMENTED_PORT = 29500


def find(facts: HostFacts) -> Cluster | None:
    """Return the hosts that NNODES counts; None where it or NODE_RANK is unset.

    ``NNODES=1`` makes this host a separate job, whatever the variables of a scheduler say.
    """
    env, row = facts.env, BY_HAND
    count = nodes(env)
    if count == 1:
        return Cluster(f"{row.hosts}=1", 0, (facts.address,), "127.0.0.1")
    index = index_of(env, row.host, row.hosts, count)
    if count is None or index is None:
        return None
    address, port = master(env)
    if not address:
        raise PlanError(
            f"{row.hosts}={count} hosts, but {row.address} is not set. Set it to the address of "
            f"host 0 on every host, and {row.port} as well unless {DOCUMENTED_PORT} is free there.",
            code="XMP-H04",
        )
    name = f"{row.host}={index}, {row.hosts}"
    return Cluster(name, index, only_first(address, count), address, port)


def by_hand(world: WorldByHand | HostsByHand, local: int) -> Cluster:
    """Return the hosts that the call names.

    ``launcher(rank_start=…, world_size=…)`` describes hosts with ``local`` replicas each. Raise
    PlanError unless the numbers are multiples of ``local``, and host 0 has an address.
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
            "number on each host.",
            code="XMP-H05",
        )
    hosts = size // local
    if hosts > 1 and not world.master_ip:
        raise PlanError(
            f"world_size={size} with {local} replicas on each host is {hosts} hosts, but master_ip "
            f"is not given. Give the address of host 0 on every host, and port= unless "
            f"{DOCUMENTED_PORT} is free there.",
            code="XMP-H04",
        )
    addresses = only_first(world.master_ip, hosts)
    name = f"rank_start={start}, world_size={size}"
    return Cluster(name, start // local, addresses, world.master_ip, world.port, by_call=True)
