"""The rank of a process that another launcher started for one device: torchrun, Slurm, MPI.

The other modules of this package find hosts on which xmp itself starts the replicas. Here another
launcher has started them, and xmp's functions describe its world.
"""

from __future__ import annotations

from collections.abc import Mapping

from xmp._replica_info import ReplicaInfo

__all__ = ["identity"]

_VARIABLES = (
    # rank, world size, local rank, local world size, host
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    # SLURM_NTASKS is set in a batch script as well, which is one process for all tasks.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),
)


def identity(environ: Mapping[str, str]) -> ReplicaInfo:
    """Rank and world size by the first launcher whose variables are set; else a world of one."""
    for names in _VARIABLES:
        rank, world, local, local_world, host = (_number(environ, name) for name in names)
        if rank is not None and world:
            if local_world is None:
                local_world = _tasks_of_a_node(environ, world)
            local = rank % local_world if local is None else local
            return ReplicaInfo(rank, local, world, local_world, _host(host, rank, local_world))
    return ReplicaInfo(rank=0, local_rank=0, world_size=1, local_world_size=1)


def _host(given: int | None, rank: int, local_world: int) -> int:
    return rank // local_world if given is None else given


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None


def _tasks_of_a_node(environ: Mapping[str, str], world: int) -> int:
    """Slurm sets "4(x2)" or "4,3"; without that, all processes are assumed to be on this host."""
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "").partition("(")[0].partition(",")[0]
    return int(tasks) if tasks.isdecimal() and int(tasks) else world
