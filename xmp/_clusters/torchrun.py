"""torchrun with one process per node: each process then starts the replicas of its host.

Several processes per node are replicas themselves (``per_device``).
"""

from __future__ import annotations

from xmp._types import HostFacts

from ._base import Cluster, number

__all__ = ["find"]

RUN = "TORCHELASTIC_RUN_ID"
NODE = "GROUP_RANK"
NODES = "GROUP_WORLD_SIZE"
PER_NODE = "LOCAL_WORLD_SIZE"
ADDRESS = "MASTER_ADDR"
PORT = "MASTER_PORT"


def find(facts: HostFacts) -> Cluster | None:
    """The nodes of a torchrun; None outside one or with several processes per node."""
    env = facts.env
    if RUN not in env or number(env, PER_NODE) != 1:
        return None
    index, count = number(env, NODE), number(env, NODES)
    if index is None or count is None or count < 2 or not env.get(ADDRESS):
        return None
    addresses = tuple(env[ADDRESS] if i == 0 else "" for i in range(count))
    # torchrun's agent serves MASTER_PORT itself: the replicas' store takes the next port.
    port = (number(env, PORT) or 29500) + 1
    return Cluster(f"torchrun ({NODE}, {NODES})", index, addresses, env[ADDRESS], port)
