"""MPICH's and Intel MPI's Hydra with one process per host (``mpirun -ppn 1``).

Each process gets PMI_RANK, PMI_SIZE, MPI_LOCALRANKID and MPI_LOCALNRANKS (mpich 5.0,
src/pm/hydra/proxy/pmip_cb.c); Intel MPI's ``mpiexec.hydra`` is made from the same source. srun sets
the first two as well, but not the others.
"""

from __future__ import annotations

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, master, one_on_each
from ._host_lists import first_host

__all__ = ["find"]

RANK = "PMI_RANK"
SIZE = "PMI_SIZE"
PER_HOST = "MPI_LOCALNRANKS"


def find(facts: HostFacts) -> Cluster | None:
    """The hosts of an mpirun with one process on each; None outside one."""
    env = facts.env
    place = one_on_each(env, RANK, SIZE, PER_HOST)
    if place is None:
        return None
    index, count = place
    address, port = master(env, otherwise=first_host(facts))
    if not address:
        raise PlanError(
            f"{SIZE}={count}, but the address of rank 0 is not known: Hydra does not say it. Set "
            "MASTER_ADDR on every host (mpirun -genv MASTER_ADDR …)."
        )
    addresses = tuple(address if i == 0 else "" for i in range(count))
    return Cluster(f"MPI ({RANK}, {SIZE})", index, addresses, address, port)
