"""Variables that announce other hosts are used or refused, never dropped: hosts would train apart.

``test_launchers.py`` has the environment of each launcher alone; here are other values, launchers
in others, and the way from the host's variables to the message.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import xmp
from tests.plans.test_launchers import JAXJOB, PYTORCHJOB
from tests.plans.test_launchers import TORCHRUNS as TORCHRUN
from xmp._os import probe
from xmp._plan import planner
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request

TRAINER = {  # without the address of the first pod
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "1",
}
TWO_NODES = {**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "RANK": "1", "WORLD_SIZE": "2"}
ONE_PROCESS = {
    **TORCHRUN,
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
}
SBATCH = {  # sbatch -N3, in the batch script itself
    "SLURM_JOB_ID": "9",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_JOB_NODELIST": "n[08-10]",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
}
ALL_HERE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
UNPLACED = {"RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "node-a"}


def plan(env: dict[str, str], runtime: str = "cpu") -> JobPlan:
    facts = HostFacts(env=env, address="10.0.0.50", cpus=(0, 1, 2, 3))
    return planner.plan(Request(runtime=runtime, nprocs=2), facts)


@pytest.mark.parametrize(
    ("env", "names"),
    [
        (PYTORCHJOB, ["RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=digits-master-0"]),
        ({**PYTORCHJOB, "RANK": "0", "MASTER_ADDR": "localhost"}, ["RANK=0", "WORLD_SIZE=4"]),
        (TRAINER, ["PET_NNODES=2", "PET_NODE_RANK=1"]),
        ({"PET_NNODES": "1:4"}, ["PET_NNODES=1:4", "1 to 4 hosts"]),
        ({"PET_NNODES": "many"}, ["PET_NNODES=many", "neither a number nor a range"]),
        ({**TWO_NODES, "MASTER_ADDR": ""}, ["GROUP_WORLD_SIZE=2"]),
        (SBATCH, ["SLURM_JOB_NUM_NODES=3", "srun --ntasks-per-node=1"]),
        ({"SLURM_NNODES": "2"}, ["SLURM_NNODES=2"]),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ["WORLD_SIZE=4"]),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, ["PMI_SIZE=4", "MPI_LOCALNRANKS=2"]),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "1"}, ["set NNODES"]),
        ({"NNODES": "2", "MASTER_ADDR": "a"}, ["NNODES=2", "NODE_RANK is not set"]),
        ({"NODE_RANK": "1", "MASTER_ADDR": "a"}, ["NODE_RANK=1", "NNODES is not set"]),
        ({"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1"}, ["GROUP_WORLD_SIZE=2"]),
        ({**ALL_HERE, "GROUP_WORLD_SIZE": "2"}, ["GROUP_WORLD_SIZE=2", "LOCAL_RANK and LOCAL"]),
        ({**ALL_HERE, "LOCAL_WORLD_SIZE": "2"}, ["RANK=1", "set LOCAL_RANK as well"]),
        ({"PET_NODE_RANK": "2", "PET_MASTER_ADDR": "job-0"}, ["PET_NODE_RANK=2", "PET_NNODES"]),
        ({"SLURM_HET_SIZE": "2", "SLURM_NNODES": "1"}, ["SLURM_HET_SIZE=2", "2 components"]),
        (UNPLACED, ["RANK=4", "set LOCAL_WORLD_SIZE", "set NNODES"]),
    ],
)
@pytest.mark.parametrize("runtime", ["cpu", "jax"])
def test_other_hosts_are_not_forgotten(env: dict[str, str], names: list[str], runtime: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(env, runtime)
    text = str(caught.value)
    assert all(name in text for name in names), text
    assert "set NNODES=1" in text
    assert plan({**env, "NNODES": "1"}, runtime).world_size == 2  # the way out


@pytest.mark.parametrize(
    "env",
    [
        {},
        {**JAXJOB, "NUM_PROCESSES": "1"},
        {**JAXJOB, "COORDINATOR_ADDRESS": "127.0.0.1:6666"},  # processes of one host
        {**PYTORCHJOB, "WORLD_SIZE": "1", "RANK": "0"},
        {**PYTORCHJOB, "WORLD_SIZE": "1", "RANK": "0", "PET_NNODES": "1", "PET_NODE_RANK": "0"},
        {**TRAINER, "PET_NNODES": "1"},
        {"PET_NNODES": "1:1"},
        {"PET_NNODES": ""},
        # torchrun --nproc-per-node=1, and in one node of three
        {**ONE_PROCESS},
        {**SBATCH, **ONE_PROCESS},
        {**SBATCH, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        {**SBATCH, "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"},
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "a"},
        {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"},
        {"LSB_MCPU_HOSTS": "a 4", "LSB_HOSTS": "a a a a"},
        {"SM_HOSTS": '["algo-1"]'},
        {"SM_RESOURCE_CONFIG": '{"current_host": "algo-1", "hosts": ["algo-1"], "x": ["y"]}'},
        {"SM_RESOURCE_CONFIG": '{"current_host": "algo-1", "network_interface_name": "eth0"}'},
        {"TF_CONFIG": '{"cluster": {"worker": ["localhost:1", "localhost:2"]}}'},
        {"NHOSTS": "2"},
        {"PET_NODE_RANK": "0"},
        {"AZ_BATCH_HOST_LIST": "10.0.0.4"},
        {"AWS_BATCH_JOB_NUM_NODES": "1"},
        {"NODE_RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},  # Lightning's own launcher
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "12355", "WORLD_SIZE": "2"},  # torch's tutorial
        {"RANK": "my-pod", "WORLD_SIZE": "2"},
        {**PYTORCHJOB, "XMP_DEVICE": "cpu"},  # inside a replica
    ],
)
def test_one_host_is_one_host_in_silence(env: dict[str, str]) -> None:
    made = plan(env)
    assert made.world_size == 2
    assert dict(made.hosts[0].replicas[0].set)["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "LOCALHOST", "::1", "127.0.1.1"])
def test_hosts_that_all_call_themselves(address: str) -> None:
    env = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": address}
    with pytest.raises(PlanError, match=r"2 hosts, but the address of host 0 is") as caught:
        plan(env)
    assert address in str(caught.value)
    assert "NNODES=1" in str(caught.value)


def test_one_machine_may_play_several_hosts() -> None:
    env = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.2"}
    assert plan(env).world_size == 4


def test_the_hosts_of_a_tpu_slice_are_all_there() -> None:
    env = {**PYTORCHJOB, "TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_WORKER_ID": "1"}
    facts = HostFacts(env=env, tpu={"generation": "v5e", "chips": 4}, frameworks={"jax": "0.10.2"})
    assert planner.plan(Request(runtime="jax"), facts).world_size == 16


@pytest.mark.parametrize("name", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "OAR_NODEFILE"])
def test_files_that_list_the_hosts(name: str, tmp_path: Path) -> None:
    """OpenPBS says by nothing else how many hosts a job has."""
    file = tmp_path / "nodes of the job"

    def planned(**env: str) -> JobPlan:
        known = probe.facts(env={name: str(file), **env}, attributes={})
        return planner.plan(Request(runtime="cpu", nprocs=2), known)

    assert planned().world_size == 2, "no such file"
    file.write_text("node-a\nnode-a\n")
    assert planned().world_size == 2
    file.write_text("node-a\nnode-a\nnode-b\nnode-b\n")
    with pytest.raises(PlanError, match=f"{name}=node-a node-b: the job has 2 hosts"):
        planned()
    assert planned(NNODES="1").world_size == 2
    assert planned(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_SIZE="2").world_size == 2
    file.unlink()
    os.mkfifo(file)
    assert planned().world_size == 2, "nothing waits for a writer"


def program(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("word", ["plan", "doctor"])
def test_the_command_line_says_the_same(word: str) -> None:
    done = program(PYTORCHJOB, "-m", "xmp", word, "--runtime", "cpu")
    assert done.returncode == 1
    assert "RANK=1, WORLD_SIZE=4, MASTER_ADDR=digits-master-0" in done.stdout + done.stderr
    assert "NNODES=1" in done.stdout + done.stderr


@pytest.mark.parametrize("nprocs", [1, 2])
def test_nothing_starts(monkeypatch: pytest.MonkeyPatch, nprocs: int) -> None:
    for name, value in PYTORCHJOB.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(xmp.PlanError, match="train apart"):
        xmp.spawn(print, nprocs=nprocs, runtime="cpu")


def noop(rank: int) -> None: ...


def test_processes_without_a_job_need_no_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**PYTORCHJOB, "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": ""}.items():
        monkeypatch.setenv(name, value)
    xmp.start_processes(noop, nprocs=2)


SCRIPT = """
import xmp

def work(rank):
    return rank, xmp.world_size()

if __name__ == "__main__":
    print(list(xmp.spawn(work, nprocs=2, runtime="cpu")), flush=True)
"""


def test_a_real_torchrun_of_one_process_is_silent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    module = ("-m", "torch.distributed.run", "--nnodes=1:1", "--nproc-per-node=1", "--rdzv-backend")
    endpoint = ("c10d", "--rdzv-endpoint=localhost:0", str(tmp_path / "script.py"))
    done = program({}, *module, *endpoint)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(0, 2), (1, 2)]\n"
    assert "xmp" not in done.stderr
