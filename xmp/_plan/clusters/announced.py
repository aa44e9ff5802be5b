"""Variables that announce other hosts, where no module of this package finds the job's hosts.

A launch of this host alone would train beside those of the other hosts, each with gradients of its
own, and none would notice. Sources of what is set, where, and with which meaning:

PyTorchJob      RANK of the pod, WORLD_SIZE pods, MASTER_ADDR; of an elastic one PET_RDZV_ENDPOINT
                and PET_NNODES, "1:4" or the workers alone, and no rank of the pod
                (kubeflow/training-operator 1.9, pkg/controller.v1/pytorch/{envvar,elastic}.go)
torchrun        takes each option's default from PET_ and its name, PET_NNODES may be "1:4"
                (torch/distributed/run.py)
Slurm           a batch script runs on the first node only, without variables of a step (sbatch(1))
LSF             LSB_MCPU_HOSTS "a 4 b 4", LSB_HOSTS "a a b b"; the command runs on the first host
                (IBM Spectrum LSF, "How LSF runs parallel jobs"). LSB_DJOB_HOSTFILE and
                LSB_DJOB_RANKFILE, files with one line for each slot, say the same where those
                would be too long
OpenPBS         PBS_NODEFILE, a file with one line for each MPI process; the script runs on the
                first host (OpenPBS 23.06, User's Guide, section "Node file")
MPI             OMPI_COMM_WORLD_* (Open MPI), PMI_SIZE and MPI_LOCALNRANKS (MPICH, Intel MPI),
                MV2_COMM_WORLD_* (MVAPICH2), HOROVOD_*
JAXJob          COORDINATOR_ADDRESS, NUM_PROCESSES, PROCESS_ID (kubeflow/training-operator,
                pkg/controller.v1/jax/envvar.go); JAX itself reads them with JAX_ before them
                (jax/_src/distributed.py)
others          SM_HOSTS (SageMaker training toolkit, ENVIRONMENT_VARIABLES.md),
                SM_RESOURCE_CONFIG (the same as JSON), AWS_BATCH_JOB_NUM_NODES (AWS Batch,
                multi-node jobs), AZ_BATCH_HOST_LIST (Azure Batch), PBS_NUM_NODES (Torque's qsub),
                OAR_NODEFILE, NHOSTS beside PE_HOSTFILE (Grid Engine's sge_pe(5)), FLUX_JOB_NNODES
                (flux-run), SKYPILOT_NUM_NODES (SkyPilot, "Distributed multi-node jobs"),
                LWS_GROUP_SIZE (Kubernetes' LeaderWorkerSet), CLUSTER_SPEC (Vertex AI) and TF_CONFIG
                (TensorFlow), PADDLE_TRAINER_ENDPOINTS (paddle.distributed)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xmp._words.errors import PlanError

from ._base import is_loopback, split_port

__all__ = [
    "FILES",
    "HYDRA",
    "JSRUN",
    "MPI",
    "MPIRUN",
    "PADDLE",
    "READ",
    "SLURM_NODES",
    "SRUN",
    "TORCHRUN",
    "XMP_RUN",
    "refuse",
]

Env = Mapping[str, str]

MPI = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
    ("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE"),
    ("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),
)
"""All processes of a job, and those of this host."""
COUNTS = (
    *("AWS_BATCH_JOB_NUM_NODES", "PBS_NUM_NODES", "FLUX_JOB_NNODES", "NHOSTS"),
    *("SKYPILOT_NUM_NODES", "LWS_GROUP_SIZE"),
)
"""Numbers of hosts."""
FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE", "OAR_NODEFILE")
"""Files with the names of the hosts, which the facts have in the place of the paths."""
JAX = ("NUM_PROCESSES", "PROCESS_ID", "COORDINATOR_ADDRESS")
SLURM_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
READ = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR"),
    *("NNODES", "NODE_RANK", "TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE", "PET_*", *SLURM_NODES),
    *("LSB_MCPU_HOSTS", "LSB_HOSTS", "SM_HOSTS", "PADDLE_TRAINER_ENDPOINTS", *COUNTS, *FILES),
    *("SM_RESOURCE_CONFIG", "AZ_BATCH_HOST_LIST", "CLUSTER_SPEC", "TF_CONFIG", "PE_HOSTFILE"),
    *("SLURM_HET_SIZE", "LSF_PM_TASKID", "LSB_JOBID"),
    *(name for pair in MPI for name in pair),
    *(f"{prefix}{name}" for prefix in ("", "JAX_") for name in JAX),
)
"""The variables that these functions read."""

HOSTS = "set NNODES, NODE_RANK and MASTER_ADDR on each host and start the program on all of them"
TORCHRUN = "start one process on each host (torchrun --nproc-per-node=1): xmp starts the others"
XMP_RUN = "start it with python, without xmp run and without xmp.run_script()"
SRUN = "start one task on each node (srun --ntasks-per-node=1): xmp starts the others"
PADDLE = "start one process on each host (python, without that launcher): xmp starts the others"
MPIRUN = "start one process on each host (mpirun --map-by ppr:1:node): xmp starts the others"
HYDRA = "start one process on each host (mpirun -ppn 1): xmp starts the others"
JSRUN = "start one process on each host (jsrun -r 1 -a 1): xmp starts the others"
BLAUNCH = 'start it on each of them: blaunch -z "$HOSTS" or jsrun -r 1 -a 1'
ELASTIC = "give the job a fixed number of pods: a Master replica and no elasticPolicy"


@dataclass(frozen=True)
class Announced:
    """What announces other hosts, and how to launch on all of them."""

    names: tuple[str, ...]
    what: str
    advice: str = HOSTS


_MPI_ADVICE = {
    "OMPI_COMM_WORLD_SIZE": MPIRUN,
    "JSM_NAMESPACE_SIZE": JSRUN,
    "PMI_SIZE": f"{HYDRA}. Or {HOSTS}",
}
_HOSTS = re.compile(r'"hosts"\s*:\s*\[([^\]]*)\]')
_ADDRESS = re.compile(r'"([^"\s]+):\d+"')

Look = Callable[[Env], Announced | bool]
"""What is announced; True: this launcher says that there is one host; False: it says nothing."""


def refuse(env: Env) -> None:
    """Raise PlanError where variables announce hosts that this launch would not include.

    ``env`` has the names of the hosts where a variable names a file of them.
    """
    for look in LOOKS:
        found = look(env)
        if isinstance(found, Announced):
            from xmp._plan.secrets import shown  # only here are its patterns needed

            given = ", ".join(
                f"{name}={shown(name, env[name])}" for name in found.names if env.get(name)
            )
            raise PlanError(
                f"{given}: {found.what}. A launch of this host alone would train apart from the "
                f"others. To train as one job, {found.advice}. To launch on this host alone, set "
                "NNODES=1."
            )
        if found:
            return


def _torchrun(env: Env) -> Announced | bool:
    names = ("GROUP_WORLD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    several = (_count(env, "GROUP_WORLD_SIZE") or 1) > 1
    whole = "TORCHELASTIC_RUN_ID" in env
    if several or (whole and _world(env) > _local_world(env)):
        return Announced(names, "torchrun runs on several hosts", TORCHRUN)
    return whole


def _by_hand(env: Env) -> Announced | bool:
    names = ("NNODES", "NODE_RANK", "MASTER_ADDR")
    count, index = _count(env, "NNODES"), _count(env, "NODE_RANK")
    if (count or 1) > 1 and index is None:
        return Announced(names, f"there are {count} hosts, but NODE_RANK is not set")
    if index and count is None:
        return Announced(names, f"this is host {index}, but NNODES is not set")
    return False


def _torch(env: Env) -> Announced | bool:
    """RANK and WORLD_SIZE: per host in a PyTorchJob, else of a process whose host is not known."""
    rank, world = _count(env, "RANK"), _world(env)
    if rank is None or world < 2 or _local_world(env) == world:
        return False
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR")
    advice = HOSTS
    if "LOCAL_RANK" not in env:
        advice = (
            f"set NNODES={world} NODE_RANK={rank} on this host, and likewise on the others, if "
            f"each of the {world} processes has a host to itself"
        )
    elif not _count(env, "LOCAL_WORLD_SIZE"):
        advice += f", or, if the {world} processes have one device each, set LOCAL_WORLD_SIZE"
    return Announced(names, f"this is process {rank} of {world}", advice)


def _kubeflow(env: Env) -> Announced | bool:
    text = env.get("PET_NNODES", "").strip()
    most = text.rpartition(":")[2]
    if text and not most.isdecimal():
        return Announced(("PET_NNODES",), 'it is neither a number nor a range such as "1:4"')
    names = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR")
    if not text and (index := _count(env, "PET_NODE_RANK")):
        return Announced(names, f"this is host {index}, but PET_NNODES is not set")
    if int(most or 1) < 2:
        return False
    rank, master = (env.get(name) for name in names[1:])
    elastic = ":" in text or "PET_RDZV_ENDPOINT" in env
    own = f"NNODES={most} NODE_RANK={rank} MASTER_ADDR={master}"
    advice = f"set {own} on this host, and likewise on the others" if rank and master else HOSTS
    what = f"there are {text.replace(':', ' to ')} hosts"
    missing = " and ".join(name for name in names[1:] if not env.get(name, "").strip())
    if missing and not elastic:
        what += f", but {missing} {'are' if ' and ' in missing else 'is'} not set"
    return Announced(names, what, ELASTIC if elastic else advice)


def _jax(env: Env) -> Announced | bool:
    for prefix in ("JAX_", ""):
        names = tuple(f"{prefix}{name}" for name in JAX)
        count, address = _count(env, names[0]), env.get(names[2], "")
        if (count or 1) > 1 and address and not is_loopback(split_port(address)[0]):
            index = env.get(names[1]) or "0"
            host = split_port(address)[0]
            own = f"NNODES={count} NODE_RANK={index} MASTER_ADDR={host}"
            advice = f"set {own} on this host, and likewise on the others"
            return Announced(names, f"there are {count} processes, one for each host", advice)
    return False


def _mpi(env: Env) -> Announced | bool:
    for size, local in MPI:
        count, here = _count(env, size), _count(env, local)
        if count is None or (here is None and "SLURM_STEP_NUM_NODES" in env):
            continue  # srun sets PMI_SIZE as well: Slurm's own variables say more
        if count == 1 or count == here:
            return True
        return Announced((size, local), "MPI runs on several hosts", _MPI_ADVICE.get(size, HOSTS))
    return False


def _slurm(env: Env) -> Announced | bool:
    name = next((name for name in SLURM_NODES if _count(env, name)), None)
    components = _count(env, "SLURM_HET_SIZE") or 1
    if components > 1:
        what = f"the job has {components} components, each on hosts of its own"
        return Announced(("SLURM_HET_SIZE", "SLURM_JOB_NODELIST"), what)
    if name is None:
        return False
    if _count(env, name) == 1:
        return True
    names = (name, "SLURM_STEP_NUM_TASKS", "SLURM_JOB_NODELIST")
    return Announced(names, f"the job has {env[name]} nodes", SRUN)


def _lists(env: Env) -> Announced | bool:
    """Schedulers that list the hosts."""
    for name, found in (
        ("LSB_MCPU_HOSTS", env.get("LSB_MCPU_HOSTS", "").split()[::2]),
        ("LSB_HOSTS", env.get("LSB_HOSTS", "").split()),
        *((name, _names(env.get(name, ""))) for name in FILES),
        ("SM_HOSTS", _quoted(env.get("SM_HOSTS", ""))),
        (
            "SM_RESOURCE_CONFIG",
            _quoted(" ".join(_HOSTS.findall(env.get("SM_RESOURCE_CONFIG", "")))),
        ),
        ("AZ_BATCH_HOST_LIST", env.get("AZ_BATCH_HOST_LIST", "").split(",")),
        ("CLUSTER_SPEC", _ADDRESS.findall(env.get("CLUSTER_SPEC", ""))),
        ("TF_CONFIG", _ADDRESS.findall(env.get("TF_CONFIG", ""))),
        ("PADDLE_TRAINER_ENDPOINTS", _without_ports(env.get("PADDLE_TRAINER_ENDPOINTS", ""))),
    ):
        if len(set(found)) > 1:
            advice = f"{BLAUNCH}. Or {HOSTS}" if name.startswith("LSB_") else HOSTS
            return Announced((name,), f"the job has {len(set(found))} hosts", advice)
    return False


def _quoted(text: str) -> list[str]:
    """The texts of a list as JSON or Python writes it."""
    return re.findall(r"""["']([^"']+)["']""", text)


def _names(text: str) -> list[str]:
    """The hosts of a file; none where the file could not be read, and its path is still there."""
    return [] if "/" in text else text.split()


def _without_ports(text: str) -> list[str]:
    return [split_port(entry)[0] for entry in text.split(",") if entry]


def _counts(env: Env) -> Announced | bool:
    for name in COUNTS:
        if name == "NHOSTS" and "PE_HOSTFILE" not in env:
            continue  # a common word: Grid Engine sets both
        if (_count(env, name) or 1) > 1:
            return Announced((name,), f"the job has {env[name]} hosts")
    return False


def _count(env: Env, name: str) -> int | None:
    """The number; None for other text, which announces nothing."""
    text = env.get(name, "").strip()
    return int(text) if text.isdecimal() else None


def _world(env: Env) -> int:
    return _count(env, "WORLD_SIZE") or 1


def _local_world(env: Env) -> int:
    return _count(env, "LOCAL_WORLD_SIZE") or _count(env, "LOCAL_SIZE") or 1


LOOKS: tuple[Look, ...] = (
    _torchrun,
    _by_hand,
    _torch,
    _kubeflow,
    _jax,
    _mpi,
    _slurm,
    _lists,
    _counts,
)
"""An inner launcher before the one that it runs in."""
