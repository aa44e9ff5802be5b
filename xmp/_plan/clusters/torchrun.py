"""torchrun with one process per node: each process then starts the replicas of its host.

Several processes per node are replicas themselves (``per_device``).
"""

from __future__ import annotations

from xmp._words.types import HostFacts

from ._base import Cluster, index_of, master, number

__all__ = ["find"]

RUN = "TORCHELASTIC_RUN_ID"
NODE = "GROUP_RANK"
NODES = "GROUP_WORLD_SIZE"
PER_NODE = "LOCAL_WORLD_SIZE"


def find(facts: HostFacts) -> Cluster | None:
    """The nodes of a torchrun; None outside one or with several processes per node."""
    env = facts.env
    if RUN not in env or number(env, PER_NODE) != 1:
        return None
    count = number(env, NODES)
    index = index_of(env, NODE, NODES, count)
    address, port = master(env)
    if index is None or count is None or count < 2 or not address:
        return None
    addresses = tuple(address if i == 0 else "" for i in range(count))
    # torchrun's agent serves MASTER_PORT itself: the replicas' store takes the next port.
    name = f"torchrun ({NODE}, {NODES})"
    return Cluster(name, index, addresses, address, (port or 29500) + 1, env[RUN])
