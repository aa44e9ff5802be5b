"""Each row of the table of launchers: an environment as that launcher makes it, and what it means.

The environments are those of the projects' sources, which the rows name. A new row needs one here.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from xmp._plan import planner
from xmp._plan.clusters import placement
from xmp._plan.clusters.launchers import LAUNCHERS, NAMES, TORCHRUN
from xmp._plan.clusters.per_device import identity, started
from xmp._plan.runtimes._base import matches
from xmp._plan.runtimes._known_variables import IDENTITY, REPORTED
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request

# --- one of several processes of a host, rank 5 of 8 on two hosts ---------------------------------

TORCHRUNS = {  # torchrun --nnodes=2 --nproc-per-node=4
    "TORCHELASTIC_RUN_ID": "7",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
}
PADDLES = {  # python -m paddle.distributed.launch --nnodes 2 --nproc_per_node 4
    "PADDLE_GLOBAL_RANK": "5",
    "PADDLE_GLOBAL_SIZE": "8",
    "PADDLE_LOCAL_RANK": "1",
    "PADDLE_LOCAL_SIZE": "4",
    "PADDLE_NNODES": "2",
    "PADDLE_TRAINER_ID": "5",
    "PADDLE_TRAINERS_NUM": "8",
}
TRAINERS = {  # paddle.distributed.spawn, and launchers before Paddle 2.1, on each of two hosts
    "PADDLE_TRAINER_ID": "5",
    "PADDLE_TRAINERS_NUM": "8",
    "PADDLE_TRAINER_ENDPOINTS": ",".join(f"{h}:{607 + i}" for h in ("a", "b") for i in range(4)),
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:34911",
}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "5",
    "MV2_COMM_WORLD_SIZE": "8",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "4",
}
MPIEXEC = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
JSRUN = {
    "JSM_NAMESPACE_RANK": "5",
    "JSM_NAMESPACE_SIZE": "8",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "4",
    **MPIRUN,
}
BATCH = {  # the batch script of Slurm itself
    "SLURM_JOB_ID": "9",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_NODELIST": "n[08-09]",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
STEP = {  # srun -N2 -n8
    **BATCH,
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "n[08-09]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
PYTORCHJOB = {
    "MASTER_ADDR": "digits-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "4",
    "RANK": "1",
    "PYTHONUNBUFFERED": "1",
}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-0", "PET_MASTER_PORT": "5"}
INDEXED = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3", "NNODES": "4"}
JAXJOB = {"NUM_PROCESSES": "2", "PROCESS_ID": "1", "COORDINATOR_ADDRESS": "jax-worker-0:6666"}
MANUAL = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "2222"}
BLAUNCH = {"LSF_PM_TASKID": "2", "LSB_MCPU_HOSTS": "a 4 train-3 4", "LSB_JOBID": "411"}


class Says(NamedTuple):
    """What an environment means."""

    ranks: bool = False
    """This is rank 5 of 8, and local rank 1 of 4 on the second host."""
    hosts: tuple[int, int, str, int] | None = None
    """This host, the number of hosts, and where they meet."""
    refused: tuple[str, ...] = ()
    """The job has other hosts, and a launch on this one alone is refused with these words."""


RANKS = Says(ranks=True)
TWO = ("2 hosts", "set NNODES, NODE_RANK and MASTER_ADDR on each host")
CASES: list[tuple[str, dict[str, str], Says]] = [
    ("torchrun", TORCHRUNS, RANKS),
    ("paddle.distributed.launch", PADDLES, RANKS),
    ("paddle.distributed.launch", {"PADDLE_GLOBAL_SIZE": "2", "PADDLE_LOCAL_SIZE": "1"},
     Says(refused=("PADDLE_GLOBAL_SIZE=2, PADDLE_LOCAL_SIZE=1: Paddle runs on several", TWO[1]))),
    ("paddle.distributed.launch", {"PADDLE_NNODES": "2"},
     Says(refused=("PADDLE_NNODES=2: the job has 2 hosts", TWO[1]))),
    ("Paddle's launcher", TRAINERS, RANKS),
    ("LSF's jsrun", JSRUN, RANKS),
    ("Open MPI", MPIRUN, RANKS),
    ("MVAPICH2", MVAPICH, RANKS),
    ("MVAPICH2", {"MV2_COMM_WORLD_SIZE": "8", "MV2_COMM_WORLD_LOCAL_SIZE": "4"},
     Says(refused=("(mpirun -ppn 1)", "Or set NNODES, NODE_RANK and MASTER_ADDR"))),
    ("MPI", MPIEXEC, RANKS),
    ("Slurm", STEP, RANKS),
    ("Horovod", {"HOROVOD_SIZE": "8", "HOROVOD_LOCAL_SIZE": "4"},
     Says(refused=("HOROVOD_SIZE=8, HOROVOD_LOCAL_SIZE=4: Horovod runs on several hosts",))),
    ("the user", MANUAL, Says(hosts=(1, 2, "10.0.0.9", 2222))),
    ("Kubeflow", PET, Says(hosts=(1, 2, "job-0", 5))),
    ("Kubernetes Indexed Job", INDEXED, Says(hosts=(3, 4, "train-0", 0))),
    ("LSF's blaunch", BLAUNCH, Says(hosts=(1, 2, "a", 0))),
    ("LSF's blaunch", {"LSB_MCPU_HOSTS": "a 4 b 4"},
     Says(refused=("LSB_MCPU_HOSTS=a 4 b 4", "2 hosts", "blaunch -z"))),
    ("LSF's blaunch", {"LSB_HOSTS": "a a b b"}, Says(refused=("LSB_HOSTS=a a b b", "blaunch -z"))),
    ("JAXJob", JAXJOB, Says(refused=("NUM_PROCESSES=2", "PROCESS_ID=1",
                                     "NNODES=2 NODE_RANK=1 MASTER_ADDR=jax-worker-0"))),
    ("JAX", {f"JAX_{name}": value for name, value in JAXJOB.items()},
     Says(refused=("JAX_NUM_PROCESSES=2", "NNODES=2 NODE_RANK=1"))),
    ("OpenPBS", {"PBS_NODEFILE": "a b"}, Says(refused=("PBS_NODEFILE=a b", *TWO))),
    ("LSF", {"LSB_DJOB_RANKFILE": "a b"}, Says(refused=("LSB_DJOB_RANKFILE=a b", "blaunch -z"))),
    ("OAR", {"OAR_NODEFILE": "a b"}, Says(refused=("OAR_NODEFILE=a b", *TWO))),
    ("SageMaker", {"SM_HOSTS": '["algo-1","algo-2"]'}, Says(refused=("SM_HOSTS=", *TWO))),
    ("SageMaker", {"SM_HOSTS": "['algo-1','algo-2']"}, Says(refused=TWO)),
    ("SageMaker", {"SM_HOSTS": '["u:s3cr3t@a","b"]'}, Says(refused=("(hidden)@a",))),
    ("SageMaker", {"SM_RESOURCE_CONFIG": '{"current_host": "a", "hosts": ["a", "b"]}'},
     Says(refused=TWO)),
    ("Azure Batch", {"AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5"}, Says(refused=TWO)),
    ("Vertex AI", {"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:2222"], "w": ["b:2222"]}}'},
     Says(refused=TWO)),
    ("TensorFlow", {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {}}'},
     Says(refused=TWO)),
    ("Paddle", {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:1"},
     Says(refused=("PADDLE_TRAINER_ENDPOINTS=a:1,b:1", *TWO))),
    ("AWS Batch", {"AWS_BATCH_JOB_NUM_NODES": "2"}, Says(refused=("AWS_BATCH_JOB_NUM_NODES=2",))),
    ("Torque", {"PBS_NUM_NODES": "2"}, Says(refused=("PBS_NUM_NODES=2", *TWO))),
    ("Flux", {"FLUX_JOB_NNODES": "2"}, Says(refused=("FLUX_JOB_NNODES=2", *TWO))),
    ("Grid Engine", {"NHOSTS": "2", "PE_HOSTFILE": "/spool/pe_hostfile"},
     Says(refused=("NHOSTS=2", *TWO))),
    ("SkyPilot", {"SKYPILOT_NUM_NODES": "2"}, Says(refused=("SKYPILOT_NUM_NODES=2", *TWO))),
    ("LeaderWorkerSet", {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"},
     Says(refused=("LWS_GROUP_SIZE=2", *TWO))),
]  # fmt: skip


def plan(env: dict[str, str], runtime: str = "cpu") -> JobPlan:
    facts = HostFacts(env=env, hostname="train-3", address="10.0.0.50", cpus=(0, 1, 2, 3))
    return planner.plan(Request(runtime=runtime, nprocs=2), facts)


@pytest.mark.parametrize("runtime", ["cpu", "jax"])
@pytest.mark.parametrize(("name", "env", "says"), CASES, ids=lambda each: str(each)[:24])
def test_what_it_means(name: str, env: dict[str, str], says: Says, runtime: str) -> None:
    found = started(env)
    assert (found is not None) == says.ranks
    info = identity(env)
    sizes = (info.world_size, info.local_world_size, info.host_index)
    if found is not None:
        assert (found.launcher, found.info) == (name, info)
    if says.hosts is None:
        expected = (5, 1, 8, 4, 1) if says.ranks else (0, 0, 1, 1, 0)
        assert (info.rank, info.local_rank, *sizes) == expected
    else:
        made = placement([HostFacts(env=env, hostname="train-3")])
        seen = made.places[0].index, len(made.addresses), made.coordinator, made.port
        assert seen == says.hosts
        assert plan(env, runtime).world_size == 2 * says.hosts[1]
        return
    with pytest.raises(PlanError) as refused:
        plan(env, runtime)
    words = (f"{name} has started this process for one device", *_advice(name))
    for word in (*(words if says.ranks else says.refused), "set NNODES=1"):
        assert word in str(refused.value)
    assert plan({**env, "NNODES": "1"}, runtime).world_size == 2  # the way out


def _advice(name: str) -> tuple[str, ...]:
    return tuple(row.advice for row in LAUNCHERS if row.name == name)


def test_each_row_has_an_environment_and_a_source() -> None:
    rows = {row.name for row in LAUNCHERS}
    assert len(rows) == len(LAUNCHERS)
    assert {name for name, *_ in CASES} == rows
    assert [row.name for row in LAUNCHERS if not row.source] == []


def test_a_report_has_all_variables_of_the_table() -> None:
    assert [name for name in NAMES if not matches(name.removesuffix("*"), REPORTED)] == []


@pytest.mark.parametrize(("name", "env", "says"), CASES, ids=lambda each: str(each)[:24])
def test_no_replica_inherits_who_the_process_is(name: str, env: dict[str, str], says: Says) -> None:
    """Lightning and accelerate would believe it."""
    [row] = [row for row in LAUNCHERS if row.name == name]
    given = plan({**env, "NNODES": "1"}).hosts[0].replicas[0]
    own = IDENTITY if row is TORCHRUN else row.drops
    gone = {variable for variable in env if matches(variable, own)}
    assert gone <= {*given.unset, *dict(given.set)}
    assert gone or not (row.drops and says.ranks)
