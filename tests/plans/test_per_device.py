"""Processes that torchrun, Slurm or MPI started one for each device: which, and as which rank.

``test_launchers.py`` has the environment of each launcher alone; here are launchers in others, and
numbers that are incomplete or wrong.
"""

from __future__ import annotations

import pytest

from tests.plans.test_launchers import BATCH, MPIEXEC, MPIRUN, PADDLES, STEP, TRAINERS
from tests.plans.test_launchers import TORCHRUNS as TORCHRUN
from xmp._plan import planner
from xmp._plan.clusters.per_device import identity, started
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request

STANDALONE = {  # torchrun --standalone --nproc-per-node=2
    **TORCHRUN,
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "2",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
}
ONE_NODE = {  # srun -N1 -n6
    **STEP,
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "6",
    "SLURM_STEP_NODELIST": "n09",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "4",
    "SLURM_NODEID": "0",
}
PER_NODE = {  # srun --ntasks-per-node=1
    **STEP,
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
CONNECTED = {  # by init_parallel_env of xmp.compat.paddle
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "6070",
}
DEEPSPEED = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_SIZE": "4",
    "MASTER_ADDR": "node-a",
}
COPIED = {"RANK": "4", "LOCAL_RANK": "4", "WORLD_SIZE": "6", "MASTER_ADDR": "n09"}

PER_DEVICE = [
    (STANDALONE, "torchrun", (1, 1, 2, 2, 0)),
    ({**STANDALONE, "RANK": "0", "LOCAL_RANK": "0"}, "torchrun", (0, 0, 2, 2, 0)),
    ({**PADDLES, **CONNECTED}, "paddle.distributed.launch", (5, 1, 8, 4, 1)),
    ({**TRAINERS, **CONNECTED}, "Paddle's launcher", (5, 1, 8, 4, 1)),
    ({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}, "Paddle's launcher", (1, 1, 2, 2, 0)),
    ({**PADDLES, **STANDALONE}, "torchrun", (1, 1, 2, 2, 0)),  # in one of Paddle's processes
    ({**PADDLES, **TORCHRUN}, "torchrun", (5, 1, 8, 4, 1)),
    ({**STEP, **PADDLES}, "paddle.distributed.launch", (5, 1, 8, 4, 1)),
    (ONE_NODE, "Slurm", (4, 4, 6, 6, 0)),
    ({**ONE_NODE, "PMI_RANK": "4", "PMI_SIZE": "6"}, "Slurm", (4, 4, 6, 6, 0)),  # --mpi=pmi2
    # nodes of different sizes
    (
        {**STEP, "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "4,3"},
        "Slurm",
        (5, 1, 7, 3, 1),
    ),
    (
        {**STEP, "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
        | {"SLURM_PROCID": "2", "SLURM_LOCALID": "0"},
        "Slurm",
        (2, 0, 3, 1, 1),
    ),
    (DEEPSPEED, "another launcher", (5, 1, 8, 4, 1)),
    # a script that copies Slurm's numbers
    ({**ONE_NODE, **COPIED}, "another launcher", (4, 4, 6, 6, 0)),
    ({**COPIED, "MASTER_ADDR": "localhost"}, "another launcher", (4, 4, 6, 6, 0)),
    # inner launchers: torchrun, mpirun and mpiexec on each node of a step
    ({**PER_NODE, **TORCHRUN}, "torchrun", (5, 1, 8, 4, 1)),
    ({**PER_NODE, **MPIRUN}, "Open MPI", (5, 1, 8, 4, 1)),
    ({**PER_NODE, **MPIEXEC}, "MPI", (5, 1, 8, 4, 1)),
    # job scripts set these for torchrun's own options
    ({**TORCHRUN, "NNODES": "2", "NODE_RANK": "1"}, "torchrun", (5, 1, 8, 4, 1)),
]


def plan(env: dict[str, str], **facts: object) -> JobPlan:
    known = HostFacts(env=env, address="10.0.0.50", cpus=(0, 1, 2, 3), **facts)  # type: ignore[arg-type]
    return planner.plan(Request(runtime="cpu", nprocs=2), known)


@pytest.mark.parametrize(("env", "launcher", "numbers"), PER_DEVICE)
def test_one_of_several_processes_of_a_host(
    env: dict[str, str], launcher: str, numbers: tuple[int, ...]
) -> None:
    found = started(env)
    assert found is not None
    info = found.info
    assert found.launcher == launcher
    sizes = (info.world_size, info.local_world_size, info.host_index)
    assert (info.rank, info.local_rank, *sizes) == numbers
    assert identity(env) == info


@pytest.mark.parametrize(("env", "launcher", "numbers"), PER_DEVICE)
def test_a_launch_in_each_of_them_is_refused(
    env: dict[str, str], launcher: str, numbers: tuple[int, ...]
) -> None:
    with pytest.raises(PlanError) as caught:
        plan(env)
    text = str(caught.value)
    assert f"{launcher} has started this process for one device, as rank {numbers[0]} of" in text
    assert "call xmp.launch" in text
    assert "start one " in text
    made = plan({**env, "NNODES": "1"})  # the way out
    assert made.world_size == 2
    assert dict(made.hosts[0].replicas[0].set)["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("env", "world"),
    [
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "RANK": "1"}, 2),
        (PER_NODE, 2),
        ({**PER_NODE, "PMI_RANK": "1", "PMI_SIZE": "2"}, 2),
        ({**PER_NODE, "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, 2),  # copied
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, 2),
        ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.9"}, 2),
    ],
)
def test_with_one_process_on_each_host_xmp_starts_the_replicas(
    env: dict[str, str], world: int
) -> None:
    alone = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    env = {**env, "WORLD_SIZE": "2"} if "TORCHELASTIC_RUN_ID" in env else env
    env = {**env, **alone} if "OMPI_COMM_WORLD_SIZE" in env else env
    assert started(env) is None
    assert len(plan(env).hosts[0].replicas) == 2
    assert plan(env).world_size == 2 * world


@pytest.mark.parametrize(
    "env",
    [
        {},
        BATCH,  # the batch script itself
        {**BATCH, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"},  # salloc, srun -n1
        {"LOCAL_RANK": "1"},
        {"NODE_RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},  # Lightning's own launcher
        {"RANK": "1", "WORLD_SIZE": "2"},  # hosts of a PyTorchJob
        {"RANK": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "MASTER_ADDR": "node-a"},  # unknown
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"},
        {"RANK": "my-pod", "WORLD_SIZE": "2"},
        {**STEP, "XMP_DEVICE": "cpu"},  # a replica of xmp's
        {**TRAINERS, "XMP_DEVICE": "cpu"},  # one with runtime "paddle"
        {**TRAINERS, "PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ID": "0"},
        # pods of one trainer each
        {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}
        | {"PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6070,10.0.0.2:6070"},
    ],
)
def test_other_processes_are_not(env: dict[str, str]) -> None:
    assert started(env) is None


def test_torchs_functions_know_the_trainers_once_they_are_connected() -> None:
    for env in (PADDLES, TRAINERS):
        apart, connected = started(env), started({**env, **CONNECTED})
        assert apart is not None
        assert connected is not None
        assert (apart.is_torchs, connected.is_torchs) == (False, True)


def test_local_ranks_of_trainers_whose_hosts_alternate() -> None:
    env = {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:1,a:2,b:2", "PADDLE_TRAINERS_NUM": "4"}
    found = [identity({**env, "PADDLE_TRAINER_ID": str(rank)}) for rank in range(4)]
    assert [(each.local_rank, each.local_world_size) for each in found] == [
        (0, 2),
        (0, 2),
        (1, 2),
        (1, 2),
    ]


def test_a_torchrun_in_a_replica_is_the_inner_one() -> None:
    found = started({**STANDALONE, "XMP_DEVICE": "cpu"})
    assert found is not None
    assert found.info.rank == 1
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    found = started({**STANDALONE, **alone, "XMP_DEVICE": "cpu"})
    assert found is not None
    assert found.info.world_size == 1


XMPS = {**STANDALONE, "XMP_DEVICE": "cpu", "TORCHELASTIC_USE_AGENT_STORE": "False"}
XMPS |= {"NNODES": "1"}


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({}, True), ({"XMP_NESTED": "0"}, True), ({"XMP_NESTED": ""}, True),
        ({"XMP_NESTED": "1"}, False),
        # a single replica, and one of two hosts
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, False),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NNODES": "2"}, True),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, False),  # a torchrun in a replica
    ],
)  # fmt: skip
def test_a_launch_in_each_replica_of_xmp_run_is_refused(
    more: dict[str, str], refused: bool
) -> None:
    env = {**XMPS, **more}
    if not refused:
        given = plan(env).hosts[0].replicas[0]
        assert {"XMP_NESTED"} & {*env} <= {*given.unset}
        return
    with pytest.raises(PlanError, match=r"xmp run has started .* XMP_NESTED=1\.") as caught:
        plan(env)
    assert "This script launches by itself: start it with python" in str(caught.value)
    found = started(env)
    assert found is not None
    assert found.is_xmps


def test_a_tpu_slice_does_not_hide_it() -> None:
    env = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1", **STANDALONE}
    facts = HostFacts(env=env, tpu={"generation": "v5e", "chips": 4}, frameworks={"jax": "0.10.2"})
    with pytest.raises(PlanError, match="torchrun has started this process"):
        planner.plan(Request(runtime="jax"), facts)


# --- the device of a rank that another launcher has made ------------------------------------------


def placed(gpus: int, local: int, mask: str | None = None) -> str:
    from xmp._calls.as_rank import _place

    env = {**STANDALONE, "RANK": str(local), "LOCAL_RANK": str(local)}
    env |= {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    env |= {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    found = started(env)
    assert found is not None
    facts = HostFacts(
        env=env, gpus={"vendor": "nvidia", "count": gpus}, frameworks={"torch": "2.13.0+cu130"}
    )
    info, module = _place(found, Request(runtime="cuda", backend="auto"), facts)
    assert module == "xmp._inside.frameworks.torch_dist"
    assert info.settings["backend"] == "nccl"
    assert info.settings["device_index"] == info.device.partition(":")[2]
    return info.device


def test_each_local_rank_has_its_gpu() -> None:
    assert [placed(4, local) for local in range(4)] == [f"cuda:{i}" for i in range(4)]


def test_a_launcher_may_mask_each_process_to_one_gpu() -> None:
    assert [placed(4, local, mask=str(local)) for local in range(4)] == ["cuda:0"] * 4


def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(PlanError, match="local rank 3 has no device: runtime 'cuda' sees 2"):
        placed(2, 3)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "1.0"}, "RANK='1.0' beside RANK=1.0, WORLD_SIZE=2"),
        ({"RANK": "-1"}, "RANK='-1' beside"),
        ({"RANK": "\uff11"}, "is not a number that a launcher sets"),
        ({"WORLD_SIZE": "99999999999999999999"}, "WORLD_SIZE='99999999999999999999' beside"),
        ({"RANK": "5"}, "RANK=5 does not fit WORLD_SIZE=2. Allowed: 0 to 1"),
        ({"LOCAL_RANK": "3"}, "LOCAL_RANK=3 does not fit LOCAL_WORLD_SIZE=2"),
        ({"WORLD_SIZE": "0"}, "RANK=1 does not fit WORLD_SIZE=0"),
        ({"LOCAL_RANK": "", "RANK": "my-pod"}, "RANK='my-pod' beside RANK=my-pod, WORLD_SIZE=2"),
        ({"LOCAL_RANK": "", "WORLD_SIZE": "-2"}, "WORLD_SIZE='-2' beside"),
        (
            {"LOCAL_RANK": "", "RANK": "", "MASTER_ADDR": "a"},
            "one of 2 processes, but RANK is not set",
        ),
    ],
    ids=str,
)
def test_an_identity_that_cannot_be_is_refused(variables: dict[str, str], words: str) -> None:
    """To ignore it would start a world in each process, or train two ranks on one part."""
    environ = {**STANDALONE, **variables}
    for look in (started, identity, _spawned):
        with pytest.raises(PlanError) as refused:
            look(environ)
        assert words in str(refused.value)


def _spawned(environ: dict[str, str]) -> JobPlan:
    return planner.plan(Request(), HostFacts(env=environ))


def test_blanks_around_a_number_are_none_of_it() -> None:
    found = started({**STANDALONE, "RANK": " 1", "WORLD_SIZE": "2\r"})
    assert found is not None
    assert (found.info.rank, found.info.world_size) == (1, 2)


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    environ = {**STANDALONE, "RANK": "", "LOCAL_RANK": ""}
    assert started(environ) is None
    assert identity(environ).world_size == 1
