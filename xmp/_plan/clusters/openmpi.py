"""Open MPI with one process per node (``mpirun --map-by ppr:1:node``)."""

from __future__ import annotations

import re

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, master, one_on_each
from ._host_lists import first_host

__all__ = ["find"]

RANK = "OMPI_COMM_WORLD_RANK"
SIZE = "OMPI_COMM_WORLD_SIZE"
PER_NODE = "OMPI_COMM_WORLD_LOCAL_SIZE"
LAUNCHER = "OMPI_MCA_orte_hnp_uri"  # "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911;tcp6://[::1]:4"
ADDRESS = "MASTER_ADDR"
JOB = "PMIX_NAMESPACE"  # openpmix 4, src/server/pmix_server.c, PMIx_server_setup_fork


def find(facts: HostFacts) -> Cluster | None:
    """The nodes of an mpirun with one process per node; None outside one."""
    env = facts.env
    place = one_on_each(env, RANK, SIZE, PER_NODE)
    if place is None:
        return None
    index, count = place
    found = re.search(r"tcp6?://\[?([^,;\]]+?)\]?(?:,[^;]*)?:\d+", env.get(LAUNCHER, ""))
    # Open MPI 5 sets no such address; it takes the hosts in the order of its scheduler.
    address, port = master(env, otherwise=found[1] if found else first_host(facts))
    if not address:
        raise PlanError(
            f"{SIZE}={count}, but the address of rank 0 is not known. Set {ADDRESS} on every "
            f"host (mpirun -x {ADDRESS}=…)."
        )
    addresses = tuple(address if i == 0 else "" for i in range(count))
    name = f"Open MPI ({RANK}, {SIZE})"
    return Cluster(name, index, addresses, address, port, env.get(JOB, ""))
