"""Two hosts by the variables of each launcher: they meet, and are one world.

``test_clusters_scripts.py`` has Kubeflow's, and the Slurm lane a real Slurm.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.hosts

PROGRAM = """
    import os, xmp

    def place(rank):
        store = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        return rank, xmp.host_index(), xmp.world_size(), *store

    if __name__ == "__main__":
        print(*xmp.spawn(place, nprocs=1, runtime="cpu", start_timeout=40), flush=True)
"""
FIRST = {"MASTER_ADDR": "127.0.0.2"}


def open_mpi(index: int, folder: Path) -> dict[str, str]:
    return {
        **FIRST,
        "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "PMIX_NAMESPACE": "prterun-cn101-411@1",
    }


def open_mpi_in_slurm(index: int, folder: Path) -> dict[str, str]:
    """mpirun, in the batch script, starts its own host's process itself, the other one by srun."""
    batch = {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2"}
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n[2-3]"}
    return {**open_mpi(index, folder), **batch, **(step if index else {})}


def hydra_by_ssh(index: int, folder: Path) -> dict[str, str]:
    """Of a job of PBS, whose variables ssh leaves behind; the list of hosts does not go either."""
    (folder / "nodes").write_text("127.0.0.2\n127.0.0.3\n")
    nodes = {"PBS_JOBID": "88.pbs", "PBS_NODEFILE": str(folder / "nodes")}
    return {
        **({**FIRST} if index else nodes),
        "PMI_RANK": str(index),
        "PMI_SIZE": "2",
        "MPI_LOCALRANKID": "0",
        "MPI_LOCALNRANKS": "1",
    }


def jsrun(index: int, folder: Path) -> dict[str, str]:
    (folder / "ranks").write_text("batch3\n" + "127.0.0.2\n" * 42 + "127.0.0.3\n" * 42)
    return {
        "LSB_JOBID": "2127651",
        "LSB_DJOB_RANKFILE": str(folder / "ranks"),
        "JSM_NAMESPACE_RANK": str(index),
        "JSM_NAMESPACE_SIZE": "2",
        "JSM_NAMESPACE_LOCAL_RANK": "0",
        "JSM_NAMESPACE_LOCAL_SIZE": "1",
        **{n: v for n, v in open_mpi(index, folder).items() if n.startswith("OMPI")},
    }


def blaunch(index: int, folder: Path) -> dict[str, str]:
    return {
        "LSB_JOBID": "411",
        "LSB_MCPU_HOSTS": "127.0.0.2 1 127.0.0.3 1",
        "LSF_PM_TASKID": str(index + 1),
    }


@pytest.mark.parametrize("placed", [open_mpi, open_mpi_in_slurm, hydra_by_ssh, jsrun, blaunch])
def test_two_hosts_are_one_world(
    placed: Callable[[int, Path], dict[str, str]], stage: Stage
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = str(free.getsockname()[1])
    hosts = [
        stage.start(PROGRAM, env={**placed(index, stage.folder), "MASTER_PORT": port})
        for index in range(2)
    ]
    found = [stage.outcome(host, timeout=60) for host in hosts]
    expected = [f"{(index, index, 2, '127.0.0.2', port)}\n" for index in range(2)]
    assert [each.out for each in found] == expected, found
    stage.gone()
