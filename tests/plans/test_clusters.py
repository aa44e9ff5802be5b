"""Kubeflow, LSF, Intel MPI and MPICH: which hosts their variables name, and which launcher counts.

The environments are those of the sources that ``xmp/_plan/clusters/launchers.py`` names.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from xmp._plan import planner
from xmp._plan.clusters import placement
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request
from xmp.testing import recorded_facts

TRAINJOB = recorded_facts("kubeflow-trainjob")
PYTORCHJOB = recorded_facts("kubeflow-pytorchjob")
JSRUN = recorded_facts("lsf-jsrun")
BLAUNCH = recorded_facts("lsf-blaunch")
INTEL = recorded_facts("intel-mpi")

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "digits-node-0-0.digits",
    "MASTER_PORT": "29500",
}
OLD = {  # an operator that sets no PET_*
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "MASTER_ADDR": "digits-master-0",
    "MASTER_PORT": "23456",
    "RANK": "1",
    "WORLD_SIZE": "3",
}
STEP = {
    "SLURM_STEP_NODELIST": "n[08-10]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "2",
}


def with_env(facts: HostFacts, *without: str, **env: str) -> HostFacts:
    kept = {name: value for name, value in facts.env.items() if name not in without}
    return replace(facts, env={**kept, **env})


def plan(facts: HostFacts) -> JobPlan:
    return planner.plan(Request(runtime="cpu", nprocs=2), facts)


def seen(facts: HostFacts) -> tuple[int, int, str, int]:
    """This host, the number of hosts, and where they meet."""
    found = placement([facts])
    return found.places[0].index, len(found.addresses), found.coordinator, found.port


def bare(**env: str) -> HostFacts:
    return HostFacts(hostname="digits-worker-0", env=env, cpus=(0, 1))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (TRAINJOB, (1, 2, "digits-node-0-0.digits", 29500)),
        (PYTORCHJOB, (2, 3, "digits-master-0", 23456)),
        (with_env(PYTORCHJOB, PET_NNODES="3:3"), (2, 3, "digits-master-0", 23456)),
        # an operator of which only MASTER_ADDR is there, and nprocPerNode counts in WORLD_SIZE
        (
            with_env(PYTORCHJOB, "PET_MASTER_ADDR", "PET_MASTER_PORT"),
            (2, 3, "digits-master-0", 23456),
        ),
        (bare(**OLD), (1, 3, "digits-master-0", 23456)),
        (bare(**OLD, PET_NPROC_PER_NODE="1"), (1, 3, "digits-master-0", 23456)),
        # operators before 1.4 give the master pod "localhost"
        (
            replace(
                bare(**{**OLD, "RANK": "0", "MASTER_ADDR": "localhost"}), hostname="digits-master-0"
            ),
            (0, 3, "digits-master-0", 23456),
        ),
        (JSRUN, (1, 2, "h41n03", 0)),
        (with_env(JSRUN, "LSB_MCPU_HOSTS"), (1, 2, "h41n03", 0)),  # by the file
        (with_env(JSRUN, MASTER_ADDR="a", MASTER_PORT="77"), (1, 2, "a", 77)),
        (with_env(JSRUN, LSB_MCPU_HOSTS="h41n03 42 h41n04 42"), (1, 2, "h41n03", 0)),
        (BLAUNCH, (1, 2, "node3", 0)),
        (replace(with_env(BLAUNCH, LSF_PM_TASKID="1"), hostname="node3"), (0, 2, "node3", 0)),
        (
            replace(BLAUNCH, hostname="ib7"),
            (1, 2, "node3", 0),
        ),  # LSF's names are not the hosts' own
        (with_env(BLAUNCH, MASTER_ADDR="ib3"), (1, 2, "ib3", 0)),
        (INTEL, (1, 2, "cn101", 0)),
        (with_env(INTEL, MASTER_ADDR="first", MASTER_PORT="5000"), (1, 2, "first", 5000)),
        (with_env(replace(INTEL, host_files={}), LSB_MCPU_HOSTS="x 1 y 1"), (1, 2, "x", 0)),
        (with_env(replace(INTEL, host_files={}), SLURM_JOB_NODELIST="n[3-4]"), (1, 2, "n3", 0)),
    ],
)
def test_their_hosts(facts: HostFacts, expected: tuple[int, int, str, int]) -> None:
    assert seen(facts) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # torchrun reads PET_* itself, and its processes inherit them
        (with_env(TRAINJOB, **TORCHRUN), (1, 2, "digits-node-0-0.digits", 29501)),
        (with_env(PYTORCHJOB, **TORCHRUN), (1, 2, "digits-node-0-0.digits", 29501)),
        # torchrun --standalone in each pod: the user means separate jobs
        (with_env(TRAINJOB, **{**TORCHRUN, "GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "1"}
                  | {"RANK": "0", "GROUP_RANK": "0"}), (0, 1, "127.0.0.1", 0)),
        # what was set by hand
        (with_env(TRAINJOB, NNODES="1"), (0, 1, "127.0.0.1", 0)),
        (with_env(TRAINJOB, NNODES="3", NODE_RANK="2", MASTER_ADDR="m"), (2, 3, "m", 0)),
        # mpirun starts its daemons by blaunch, whose variables its processes inherit
        (
            with_env(
                BLAUNCH,
                OMPI_COMM_WORLD_RANK="0",
                OMPI_COMM_WORLD_SIZE="2",
                OMPI_COMM_WORLD_LOCAL_SIZE="1",
            ),
            (0, 2, "node3", 0),
        ),
        (with_env(BLAUNCH, PMI_RANK="0", PMI_SIZE="2", MPI_LOCALNRANKS="1"), (0, 2, "node3", 0)),
        # Hydra starts its proxies by srun: as many tasks as nodes
        (with_env(replace(INTEL, host_files={}), **STEP, MASTER_ADDR="n09"), (1, 2, "n09", 0)),
        # srun --mpi=pmi2 sets PMI_* as well
        (bare(**STEP, PMI_RANK="2", PMI_SIZE="3"), (2, 3, "n08", 0)),
        (bare(**STEP, MASTER_ADDR="10.0.0.8", MASTER_PORT="99"), (2, 3, "10.0.0.8", 99)),
    ],
)  # fmt: skip
def test_an_inner_launcher_says_more(facts: HostFacts, expected: tuple[int, int, str, int]) -> None:
    assert seen(facts) == expected


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        # elastic: a rank of the pod is not set, or the number of pods is not fixed
        (bare(PET_NNODES="1:4", PET_RDZV_ENDPOINT="e-worker-0:23456"), "1 to 4 hosts"),
        (bare(PET_NNODES="2", PET_RDZV_ENDPOINT="e-worker-0:23456"), "no elasticPolicy"),
        (
            with_env(PYTORCHJOB, PET_RDZV_ENDPOINT="e-worker-0:1", PET_NNODES="2"),
            "RANK=2, WORLD_SIZE=12",
        ),
        (with_env(TRAINJOB, PET_NODE_RANK="2"), "pod 2 does not fit 2 pods. Allowed: 0 to 1"),
        (with_env(TRAINJOB, PET_NODE_RANK="one"), "PET_NODE_RANK='one' is not a number"),
        (
            with_env(TRAINJOB, PET_MASTER_PORT="70000"),
            "PET_MASTER_PORT='70000' is out of range. Allowed: 1 to 65535",
        ),
        (
            with_env(TRAINJOB, PET_MASTER_ADDR="a:29500"),
            "has a port. Set PET_MASTER_ADDR=a and PET",
        ),
        (
            with_env(TRAINJOB, "PET_MASTER_ADDR"),
            "PET_NNODES=2, PET_NODE_RANK=1: there are 2 hosts, but PET_MASTER_ADDR is not set. A",
        ),
        (bare(PET_NNODES="2"), "2 hosts, but PET_NODE_RANK and PET_MASTER_ADDR are not set. A"),
        (with_env(TRAINJOB, PET_MASTER_ADDR="localhost"), "the address of host 0 is localhost"),
        # not in a pod of an operator: processes whose hosts are not known
        (bare(**{k: v for k, v in OLD.items() if "KUBE" not in k}), "this is process 1 of 3"),
        (
            replace(bare(**{**OLD, "MASTER_ADDR": "svc"}), hostname="x"),
            "set NNODES=3 NODE_RANK=1",
        ),
        (with_env(JSRUN, JSM_NAMESPACE_RANK="2"), "JSM_NAMESPACE_RANK=2 does not fit"),
        (
            with_env(replace(JSRUN, host_files={}), "LSB_MCPU_HOSTS"),
            "LSF lists no hosts",
        ),
        # blaunch without -z: one task for each slot
        (with_env(BLAUNCH, LSF_PM_TASKID="33"), 'blaunch -z "node3 node7"'),
        (with_env(BLAUNCH, LSF_PM_TASKID="1"), "LSF_PM_TASKID=1 on node7.cluster"),
        # the job's script itself
        (with_env(BLAUNCH, "LSF_PM_TASKID"), "blaunch -z"),
        (replace(INTEL, host_files={}), "mpirun -genv MASTER_ADDR"),
        (with_env(INTEL, PMI_RANK="2"), "PMI_RANK=2 does not fit PMI_SIZE=2"),
        (with_env(INTEL, "PMI_RANK"), "mpirun -ppn 1"),
        (with_env(INTEL, MASTER_ADDR="::1"), "the address of host 0 is ::1"),
    ],
)
def test_what_cannot_be_one_job(facts: HostFacts, words: str) -> None:
    with pytest.raises(PlanError) as refused:
        plan(facts)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("facts", "launcher", "advice"),
    [
        (
            with_env(JSRUN, JSM_NAMESPACE_SIZE="4", JSM_NAMESPACE_LOCAL_SIZE="2"),
            "LSF's jsrun",
            "jsrun -r 1 -a 1",
        ),
        (with_env(INTEL, PMI_SIZE="4", MPI_LOCALNRANKS="2"), "MPI", "mpirun -ppn 1"),
        (
            with_env(TRAINJOB, **{**TORCHRUN, "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}),
            "torchrun",
            "--nproc-per-node=1",
        ),
        (
            with_env(PYTORCHJOB, **{**TORCHRUN, "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}),
            "torchrun",
            "--nproc-per-node=1",
        ),
    ],
)
def test_processes_for_each_device_are_refused(
    facts: HostFacts, launcher: str, advice: str
) -> None:
    with pytest.raises(PlanError, match="has started this process for one device") as refused:
        plan(facts)
    assert str(refused.value).startswith(launcher)
    assert advice in str(refused.value)


@pytest.mark.parametrize("facts", [TRAINJOB, PYTORCHJOB, JSRUN, BLAUNCH, INTEL])
def test_a_replica_does_not_inherit_what_identifies_another_process(facts: HostFacts) -> None:
    """Lightning and accelerate would believe them."""
    first = plan(facts).hosts[0].replicas[0]
    gone = {n for n in facts.env if n.startswith(("JSM_", "OMPI_COMM", "PMI_RANK", "MPI_LOCAL"))}
    assert gone <= {*first.unset}
    assert dict(first.set)["RANK"] == str(2 * plan(facts).hosts[0].index)


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (bare(**STEP, SLURM_JOB_ID="9", SLURM_STEP_ID="0"), "9.0"),
        (with_env(TRAINJOB, **TORCHRUN), "7"),
        (JSRUN, "2127651"),
        (BLAUNCH, "411"),
        (TRAINJOB, ""),
        # the scheduler's names are not on all hosts where mpirun has started the processes
        (with_env(INTEL, SLURM_JOB_ID="9", LSB_JOBID="8"), ""),
        (bare(NNODES="2", NODE_RANK="1", MASTER_ADDR="a", SLURM_JOB_ID="9"), ""),
    ],
)
def test_the_name_of_the_job_is_its_own_launchers(facts: HostFacts, name: str) -> None:
    meeting = plan(facts).meeting
    assert meeting is not None
    assert meeting.job == name


# --- the address of host 0 -----------------------------------------------------------------------


def by_hand(address: str, index: int = 1) -> HostFacts:
    return bare(NNODES="2", NODE_RANK=str(index), MASTER_ADDR=address)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("fd00::9", "fd00::9"), ("[fd00::9]", "fd00::9"), (" node-a ", "node-a"), ("a.b", "a.b")],
)
def test_addresses_as_people_write_them(given: str, meant: str) -> None:
    assert seen(by_hand(given))[2] == meant


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "::", "[::1]", "ip6-localhost", "x.localhost", "localhost.localdomain", "127.1"],
)
def test_addresses_that_each_host_calls_its_own(address: str) -> None:
    with pytest.raises(PlanError, match="which is each host itself"):
        plan(by_hand(address))


@pytest.mark.parametrize("given", ["node-a:29500", "10.0.0.9:2222", "[fd00::9]:2222"])
def test_an_address_with_a_port_is_refused(given: str) -> None:
    host, _, port = given.rpartition(":")
    with pytest.raises(PlanError) as refused:
        plan(by_hand(given))
    assert f"Set MASTER_ADDR={host.strip('[]')} and MASTER_PORT={port}." in str(refused.value)


# --- a whole slice -------------------------------------------------------------------------------

SLICE = recorded_facts("v6e-16")


def worker(index: int) -> HostFacts:
    """The recorded host as another worker of its slice."""
    own = SLICE.metadata["agent-worker-number"]
    described = SLICE.metadata["tpu-env"].replace(f"WORKER_ID: '{own}'", f"WORKER_ID: '{index}'")
    address = SLICE.metadata["worker-network-endpoints"].split(",")[index].rpartition(":")[2]
    metadata = {**SLICE.metadata, "agent-worker-number": str(index), "tpu-env": described}
    name = SLICE.hostname.replace(f"-w-{own}", f"-w-{index}")
    return replace(SLICE, hostname=name, address=address, metadata=metadata)


@pytest.mark.parametrize("runtime", ["pjrt", "jax", "torch_tpu"])
def test_each_host_of_a_slice_plans_its_part_of_the_whole(runtime: str) -> None:
    hosts = [worker(index) for index in range(4)]
    whole = planner.plan(Request(runtime=runtime), [hosts[i] for i in (2, 0, 3, 1)])
    assert [host.index for host in whole.hosts] == [0, 1, 2, 3]
    assert [r.rank for host in whole.hosts for r in host.replicas] == list(range(16))
    for index, facts in enumerate(hosts):
        alone = planner.plan(Request(runtime=runtime), facts)
        assert alone.hosts == (whole.hosts[index],)
        assert alone.world_size == whole.world_size == 16
    assert worker(2) == SLICE, "the one whose plan is golden"
