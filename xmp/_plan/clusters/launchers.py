"""The table of launchers: which environment variables say what each of them has started.

A row has the name of a variable for each fact, and where that was found out. What a row cannot say
is a function of the module that asks: nodes of Slurm, LSF, pods, Paddle's endpoints. The order is
precedence: an inner launcher stands before the one that it runs in.

A new launcher is a row here, and an environment in ``tests/plans/test_launchers.py``. Another
distribution adds one by an entry point (``xmp._registry``):

    [project.entry-points."xmp.launchers"]
    acme = "acme_xmp:ACME"        # an instance of xmp.plugins.Launcher
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace

from xmp import _registry
from xmp._words.errors import PlanError

from ._host_texts import split_port
from ._launcher import HOSTS, Launcher

__all__ = ["LAUNCHERS", "NAMES", "foreign", "outer"]


def _one(command: str, what: str = "process on each host") -> str:
    return f"start one {what} ({command}): xmp starts the others"


def _unknown(command: str, why: str = "the address of rank 0 is not known") -> str:
    return f"{why}. Set MASTER_ADDR on every host ({command})."


# --- how hosts are listed -------------------------------------------------------------------------


def _in_file(text: str) -> list[str]:
    """Return the hosts of a file; none where it could not be read, and its path is still there."""
    return [] if "/" in text else text.split()


def _quoted(text: str) -> list[str]:
    """Return the texts of a list as JSON or Python writes it."""
    return re.findall(r"""["']([^"']+)["']""", text)


def _resource_config(text: str) -> list[str]:
    """Return the hosts of SageMaker's JSON: ``{"hosts": ["algo-1", "algo-2"], …}``."""
    return _quoted(" ".join(re.findall(r'"hosts"\s*:\s*\[([^\]]*)\]', text)))


def _cluster_spec(text: str) -> list[str]:
    """Return the hosts of TensorFlow's JSON: ``{"cluster": {"worker": ["a:2222", …]}}``."""
    return re.findall(r'"([^"\s]+):\d+"', text)


def _endpoints(text: str) -> list[str]:
    """Return a and b of ``"a:6070,b:6070"``."""
    return [split_port(entry)[0] for entry in text.split(",") if entry]


# --- the table ------------------------------------------------------------------------------------

INSIDE = "XMP_DEVICE"
"""Set in the replicas of xmp."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's agent hosts a store ("True"); `xmp run` has none ("False")."""
DEEPSPEEDS = "LOCAL_SIZE"
RENDEZVOUS = "PET_RDZV_ENDPOINT"
ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"  # "10.0.0.1:6070,10.0.0.1:6071,10.0.0.2:6070"
HNP_URI = "OMPI_MCA_orte_hnp_uri"  # "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911;tcp6://[::1]:4"
TASKS = "SLURM_STEP_TASKS_PER_NODE"  # "4(x2)" or "4,3"
NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")  # "n[001-003,7],login-1"
NODES = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
COMPONENTS = "SLURM_HET_SIZE"
RANK_FILES = ("LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE")
_HYDRA = _one("mpirun -ppn 1")
_PADDLES = _one("python, without that launcher")
_BLAUNCH = f'start it on each of them: blaunch -z "$HOSTS" or jsrun -r 1 -a 1. Or {HOSTS}'

# fmt: off
TORCHRUN = Launcher(
    "torchrun", rank="RANK", world="WORLD_SIZE",
    local_rank="LOCAL_RANK", local_world="LOCAL_WORLD_SIZE",
    host="GROUP_RANK", hosts="GROUP_WORLD_SIZE", address="MASTER_ADDR", port="MASTER_PORT",
    mark="TORCHELASTIC_RUN_ID", job=("TORCHELASTIC_RUN_ID",), more=(DEEPSPEEDS,),
    drops=("TORCHELASTIC_*",), advice=_one("torchrun --nproc-per-node=1"),
    source="torch 2.13, distributed/elastic/agent/server/local_elastic_agent.py; DeepSpeed sets "
    "LOCAL_SIZE in place of LOCAL_WORLD_SIZE (deepspeed/launcher/launch.py)",
)
PADDLE = Launcher(
    "paddle.distributed.launch", rank="PADDLE_GLOBAL_RANK", world="PADDLE_GLOBAL_SIZE",
    local_rank="PADDLE_LOCAL_RANK", local_world="PADDLE_LOCAL_SIZE", hosts="PADDLE_NNODES",
    drops=("PADDLE_GLOBAL_*", "PADDLE_LOCAL_*", "PADDLE_NNODES", "PADDLE_RANK_IN_NODE"),
    family="Paddle", advice=_PADDLES, announced=HOSTS,
    source="paddle 3.3.1, distributed/launch/controllers/collective.py",
)
TRAINERS = Launcher(
    "Paddle's launcher", rank="PADDLE_TRAINER_ID", world="PADDLE_TRAINERS_NUM", advice=_PADDLES,
    source="paddle 3.3.1, distributed/spawn.py; launchers before Paddle 2.1 set no others",
)
JSRUN = Launcher(
    "LSF's jsrun", rank="JSM_NAMESPACE_RANK", world="JSM_NAMESPACE_SIZE",
    local_rank="JSM_NAMESPACE_LOCAL_RANK", local_world="JSM_NAMESPACE_LOCAL_SIZE",
    job=("LSB_JOBID",), drops=("JSM_NAMESPACE_*",), family="LSF", advice=_one("jsrun -r 1 -a 1"),
    no_address=_unknown("jsrun -E MASTER_ADDR=…", "LSF lists no hosts (LSB_MCPU_HOSTS, "
    "LSB_DJOB_RANKFILE), so the address of rank 0 is not known"),
    source="lightning_fabric 2.6.6, plugins/environments/lsf.py; Open MPI's own tests read the "
    "fourth. It sets Open MPI's variables as well, without an address",
)
OPEN_MPI = Launcher(
    "Open MPI", rank="OMPI_COMM_WORLD_RANK", world="OMPI_COMM_WORLD_SIZE",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK", local_world="OMPI_COMM_WORLD_LOCAL_SIZE",
    job=("PMIX_NAMESPACE",), more=(HNP_URI,), family="MPI",
    drops=("OMPI_COMM_WORLD_*", HNP_URI, "PMIX_RANK"),
    advice=_one("mpirun --map-by ppr:1:node"), no_address=_unknown("mpirun -x MASTER_ADDR=…"),
    source="docs.open-mpi.org, mpirun(1); openpmix 4, src/server/pmix_server.c. Open MPI 5 sets "
    "no address; it takes the hosts in the order of its scheduler",
)
MVAPICH = Launcher(
    "MVAPICH2", rank="MV2_COMM_WORLD_RANK", world="MV2_COMM_WORLD_SIZE",
    local_rank="MV2_COMM_WORLD_LOCAL_RANK", local_world="MV2_COMM_WORLD_LOCAL_SIZE",
    family="MPI", advice=_HYDRA, announced=f"{_HYDRA}. Or {HOSTS}",  # its mpirun is MPICH's
    source="MVAPICH2 2.3 user guide, 6.4",
)
MPICH = Launcher(
    "MPI", rank="PMI_RANK", world="PMI_SIZE",
    local_rank="MPI_LOCALRANKID", local_world="MPI_LOCALNRANKS",
    drops=("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    advice=_HYDRA, announced=f"{_HYDRA}. Or {HOSTS}",
    no_address=_unknown("mpirun -genv MASTER_ADDR …", "the address of rank 0 is not known: Hydra "
    "does not say it"),
    source="mpich 5.0, src/pm/hydra/proxy/pmip_cb.c, from which Intel MPI's mpiexec.hydra is made; "
    "srun sets the first two as well, but not the others",
)
HOROVOD = Launcher(
    "Horovod", world="HOROVOD_SIZE", local_world="HOROVOD_LOCAL_SIZE",
    source="horovod, runner/gloo_run.py, create_slot_env_vars",
)
SLURM = Launcher(
    # SLURM_NTASKS is set in a batch script as well, which is one process for all tasks.
    "Slurm", rank="SLURM_PROCID", world="SLURM_STEP_NUM_TASKS", local_rank="SLURM_LOCALID",
    host="SLURM_NODEID", hosts=NODES[0], job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    more=(TASKS, *NODE_LISTS, *NODES[1:], COMPONENTS, "SLURM_NTASKS"),
    drops=(
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS",
        "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", TASKS, NODE_LISTS[0],
    ),
    advice=_one("srun --ntasks-per-node=1", "task on each node"),
    source="srun(1); a batch script runs on the first node only, without variables of a step "
    "(sbatch(1))",
)
BY_HAND = Launcher(
    "the user", host="NODE_RANK", hosts="NNODES", address="MASTER_ADDR", port="MASTER_PORT",
    source="the multi-node examples of torch",
)
KUBEFLOW = Launcher(
    "Kubeflow", host="PET_NODE_RANK", hosts="PET_NNODES",
    address="PET_MASTER_ADDR", port="PET_MASTER_PORT", more=(RENDEZVOUS, "PET_*"),
    source="kubeflow/trainer 2.3, pkg/runtime/framework/plugins/torch/torch.go; kubeflow/"
    "training-operator 1.9, pkg/controller.v1/pytorch/{envvar,elastic,master}.go; torch 2.13, "
    "torch/distributed/run.py: torchrun takes each option's default from PET_ and its name",
)
INDEXED_JOB = Launcher(
    "Kubernetes Indexed Job", host="JOB_COMPLETION_INDEX", hosts=BY_HAND.hosts,
    mark="KUBERNETES_SERVICE_HOST",
    source="Kubernetes, Jobs; it sets no number of pods: the manifest must set NNODES",
)
JAX = Launcher(
    "JAX", host="JAX_PROCESS_ID", hosts="JAX_NUM_PROCESSES", address="JAX_COORDINATOR_ADDRESS",
    source="jax/_src/distributed.py",
)
JAXJOB = Launcher(
    "JAXJob", host="PROCESS_ID", hosts="NUM_PROCESSES", address="COORDINATOR_ADDRESS",
    source="kubeflow/training-operator, pkg/controller.v1/jax/envvar.go",
)
LSF = Launcher(
    "LSF's blaunch", rank="LSF_PM_TASKID", job=("LSB_JOBID",),
    lists=(("LSB_MCPU_HOSTS", lambda text: text.split()[::2]),  # "a 4 b 4"
           ("LSB_HOSTS", str.split)),  # "a a b b"
    drops=("LSF_PM_TASKID",), family="LSF", advice=_BLAUNCH,
    source="Open MPI 4, orte/mca/ess/lsf/ess_lsf_module.c; IBM Spectrum LSF, \"blaunch\" and \"How "
    "LSF runs parallel jobs\": the command of a job runs on the first host",
)
PBS = Launcher(
    "OpenPBS", lists=(("PBS_NODEFILE", _in_file),),
    source="OpenPBS 23.06, User's Guide, \"Node file\": a line for each MPI process; the script "
    "runs on the first host",
)
LSF_FILES = Launcher(
    "LSF", lists=tuple((name, _in_file) for name in RANK_FILES), advice=_BLAUNCH,
    source="IBM Spectrum LSF: a line for each slot, also where the lists would be too long",
)
OAR = Launcher("OAR", lists=(("OAR_NODEFILE", _in_file),), source="OAR's oarsub(1)")
LAUNCHERS: tuple[Launcher, ...] = (
    TORCHRUN, PADDLE, TRAINERS,
    JSRUN, OPEN_MPI, MVAPICH, MPICH, HOROVOD, SLURM,
    BY_HAND, KUBEFLOW, INDEXED_JOB, JAX, JAXJOB, LSF, PBS, LSF_FILES, OAR,
    Launcher("SageMaker", lists=(("SM_HOSTS", _quoted), ("SM_RESOURCE_CONFIG", _resource_config)),
             source="SageMaker training toolkit, ENVIRONMENT_VARIABLES.md"),
    Launcher("Azure Batch", lists=(("AZ_BATCH_HOST_LIST", lambda text: text.split(",")),),
             source="Azure Batch, environment variables of multi-instance tasks"),
    Launcher("Vertex AI", lists=(("CLUSTER_SPEC", _cluster_spec),), source="Vertex AI"),
    Launcher("TensorFlow", lists=(("TF_CONFIG", _cluster_spec),), source="tf.distribute"),
    Launcher("Paddle", lists=((ENDPOINTS, _endpoints),), source=TRAINERS.source),
    Launcher("AWS Batch", hosts="AWS_BATCH_JOB_NUM_NODES", source="AWS Batch, multi-node jobs"),
    Launcher("Torque", hosts="PBS_NUM_NODES", source="Torque's qsub"),
    Launcher("Flux", hosts="FLUX_JOB_NNODES", source="flux-run(1)"),
    Launcher("Grid Engine", hosts="NHOSTS", mark="PE_HOSTFILE", source="sge_pe(5)"),
    Launcher("SkyPilot", hosts="SKYPILOT_NUM_NODES", source="Distributed multi-node jobs"),
    Launcher("LeaderWorkerSet", hosts="LWS_GROUP_SIZE", source="Kubernetes' LeaderWorkerSet"),
)
# fmt: on
OTHER = replace(TORCHRUN, name="another launcher")
"""Any that sets torchrun's variables, without its run id."""
XMP_RUN = replace(
    TORCHRUN,
    name="xmp run",  # `xmp.run_script` does the same without a command
    advice="start it with python, without xmp run and without xmp.run_script()",
)
FILES = tuple(name for row in LAUNCHERS for name, reader in row.lists if reader is _in_file)
"""Files with the names of the hosts, which the facts have in the place of the paths."""
NAMES = tuple(dict.fromkeys(name for row in LAUNCHERS for name in row.names))
"""All variables of the table."""
_KNOWN = frozenset(NAMES)
_KINDS = ("torchrun", "Slurm", "Paddle", "MPI", "LSF")


def outer(env: Mapping[str, str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return what no replica may inherit from a launcher, by what notes call the launcher."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(_KINDS, ())
    for row in (*LAUNCHERS, *foreign(env)):
        found[row.kind] = (*found.get(row.kind, ()), *row.drops)
    return tuple((kind, names) for kind, names in found.items() if names)


# --- rows of other distributions ------------------------------------------------------------------

_OF_A_LAUNCHER = re.compile(r"RANK|PROC|TASK|NODE|HOST|TRAINER")


def foreign(env: Mapping[str, str]) -> tuple[Launcher, ...]:
    """Return the rows of other distributions; none where no launcher of theirs can be at work.

    To list what is installed takes 10 to 30 ms, and `xmp.rank()` asks at each call. So it is done
    once, and only where a variable that is in no row of ours has a whole number, and RANK, PROC,
    TASK, NODE, HOST or TRAINER in its name. Raise PlanError for what is no row.
    """
    for name in env:
        if _OF_A_LAUNCHER.search(name) and name not in _KNOWN and env[name].isdecimal():
            return _theirs()
    return ()


@functools.cache
def _theirs() -> tuple[Launcher, ...]:
    rows = {name: entry.load() for name, entry in _registry.foreign("launchers").items()}
    for name, row in rows.items():
        if not isinstance(row, Launcher):
            raise PlanError(
                f"the entry point {name!r} of the group xmp.launchers is {row!r}, not an instance "
                "of xmp.plugins.Launcher"
            )
    return tuple(rows.values())
