"""The rank of a process that another launcher started for one device: torchrun, Slurm, MPI.

The other modules of this package find hosts on which xmp itself starts the replicas. Here another
launcher has started them: xmp's functions describe its world, and a launch of each of its processes
would make a world of its own. The variables, and who sets them:

torchrun        RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK (torch 2.13,
                distributed/elastic/agent/server/local_elastic_agent.py); DeepSpeed's launcher sets
                LOCAL_SIZE in place of LOCAL_WORLD_SIZE (deepspeed/launcher/launch.py)
Open MPI        OMPI_COMM_WORLD_* (docs.open-mpi.org, mpirun(1))
MVAPICH2        MV2_COMM_WORLD_* (MVAPICH2 2.3 user guide, 6.4)
LSF's jsrun     JSM_NAMESPACE_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE (lightning_fabric 2.6.6,
                plugins/environments/lsf.py), and Open MPI's as well
MPICH, Intel    PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS (mpich, pm/hydra)
Paddle          PADDLE_GLOBAL_RANK PADDLE_GLOBAL_SIZE PADDLE_LOCAL_RANK PADDLE_LOCAL_SIZE
                PADDLE_NNODES (paddle 3.3.1, distributed/launch/controllers/collective.py);
                paddle.distributed.spawn, and launchers before Paddle 2.1, set PADDLE_TRAINER_ID
                PADDLE_TRAINERS_NUM PADDLE_TRAINER_ENDPOINTS alone (distributed/spawn.py)
Slurm           SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_* (srun(1))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xmp._words.errors import PlanError
from xmp._words.replica_info import ReplicaInfo

from ._base import is_loopback
from .announced import HYDRA, JSRUN, MPI, MPIRUN, PADDLE, SLURM_NODES, SRUN, TORCHRUN, XMP_RUN

__all__ = [
    "INSIDE",
    "NESTED",
    "READ",
    "Started",
    "identity",
    "launches_apart",
    "refuse",
    "started",
]

Env = Mapping[str, str]
INSIDE = "XMP_DEVICE"
RUN = "TORCHELASTIC_RUN_ID"
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's agent hosts a store ("True"); `xmp run` has none ("False")."""
NESTED = "XMP_NESTED"
"""The user's word that each replica of `xmp run` is to launch a world of its own."""


@dataclass(frozen=True)
class _Launcher:
    """A launcher, and the variables with its numbers."""

    name: str
    rank: str
    world: str
    local: str
    local_world: str = ""
    host: str = ""
    hosts: str = ""
    advice: str = MPIRUN
    """How it starts one process on each host."""

    @property
    def names(self) -> tuple[str, ...]:
        names = (self.rank, self.world, self.local, self.local_world, self.host, self.hosts)
        return tuple(filter(None, names))


_TORCH = _Launcher(
    *("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", TORCHRUN),
)
_SLURM = _Launcher(
    # SLURM_NTASKS is set in a batch script as well, which is one process for all tasks.
    *("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    *("SLURM_NODEID", "SLURM_STEP_NUM_NODES", SRUN),
)
_OPEN_MPI = _Launcher(
    *("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
_MVAPICH = _Launcher(
    *("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    *("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
_MPICH = _Launcher(
    *("MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"), advice=HYDRA
)
_JSRUN = _Launcher(
    *("LSF's jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    *("JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    advice=JSRUN,
)
_PADDLE = _Launcher(
    *("paddle.distributed.launch", "PADDLE_GLOBAL_RANK", "PADDLE_GLOBAL_SIZE"),
    *("PADDLE_LOCAL_RANK", "PADDLE_LOCAL_SIZE", "", "PADDLE_NNODES", PADDLE),
)
_TRAINERS = _Launcher(
    *("Paddle's launcher", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", ""), advice=PADDLE
)
_XMPS = "xmp run"
"""Its name; `xmp.run_script` does the same without a command."""
_ALL = (_TORCH, _PADDLE, _TRAINERS, _JSRUN, _OPEN_MPI, _MVAPICH, _MPICH, _SLURM)
_LOCAL_SIZE = "LOCAL_SIZE"
_ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"  # "10.0.0.1:6070,10.0.0.1:6071,10.0.0.2:6070"
_MOST = 2**31
_TASKS = "SLURM_STEP_TASKS_PER_NODE"
READ = (*(name for launcher in _ALL for name in launcher.names), _LOCAL_SIZE, _TASKS, _ENDPOINTS)
"""The variables that these functions read."""


@dataclass(frozen=True)
class Started:
    """What a launcher has made of this process: one of several on this host."""

    launcher: str
    """Its name, for messages."""
    info: ReplicaInfo
    given: str
    """The variables that say so: ``"RANK=1, WORLD_SIZE=2, …"``."""
    advice: str
    """What else to do, so that xmp starts the replicas."""
    is_torchs: bool
    """Whether torchrun's variables are set, by it or by ``init_parallel_env``."""

    @property
    def is_xmps(self) -> bool:
        """Whether this is a replica of `xmp run`, or a child of one, which has its variables."""
        return self.launcher == _XMPS


def identity(environ: Env) -> ReplicaInfo:
    """Rank and world size by the innermost launcher whose variables are set; else a world of one.

    Without the size of this host, all processes are assumed to be on it.
    """
    for launcher in _whole(environ):
        rank, world = _number(environ, launcher.rank), _number(environ, launcher.world)
        if rank is not None and world:
            local_world = _local_world(launcher, environ, world) or world
            return _info(launcher, environ, rank, world, local_world)
    return ReplicaInfo(rank=0, local_rank=0, world_size=1, local_world_size=1)


def started(environ: Env) -> Started | None:
    """Whether a launcher has started this process beside others on this host, and as which rank.

    None where it starts one process on each host: there xmp starts the replicas. None in a replica
    of xmp's too, unless a launcher has started it there, or `xmp run` did: only these set
    TORCHELASTIC_RUN_ID, and even a single process of theirs is a replica.
    """
    if INSIDE in environ and RUN not in environ:
        return None
    for launcher in _whole(environ):
        rank, world = _number(environ, launcher.rank), _number(environ, launcher.world)
        if rank is None or not world:
            continue
        local_world = _local_world(launcher, environ, world)
        is_one_of = world > 1 and _beside_others(launcher, environ, world, local_world)
        if not (is_one_of or INSIDE in environ):
            return None
        name = _name_of(launcher, environ)
        info = _info(launcher, environ, rank, world, local_world or world)
        is_torchs = launcher is _TORCH or _is_exported(launcher, environ)
        advice = XMP_RUN if name == _XMPS else launcher.advice
        return Started(name, info, _given(launcher, environ), advice, is_torchs)
    return None


def _name_of(launcher: _Launcher, environ: Env) -> str:
    if launcher is not _TORCH or RUN not in environ:
        return "another launcher" if launcher is _TORCH else launcher.name
    is_xmps = INSIDE in environ and environ.get(AGENT_STORE) == "False"
    return _XMPS if is_xmps else launcher.name


def launches_apart(environ: Env) -> Started | None:
    """As ``started``, where a launch in each of these processes would make a world of its own.

    ``NNODES=1`` says that this is meant; every replica of `xmp run` has that, and there it is
    ``XMP_NESTED=1``. A replica of any other launch may launch.
    """
    found = started(environ)
    if found is not None and found.is_xmps:
        meant = found.info.world_size == 1 or _number(environ, NESTED) == 1
    else:
        meant = INSIDE in environ or _number(environ, "NNODES") == 1
    return None if meant else found


def refuse(environ: Env) -> None:
    """Raise PlanError where ``launches_apart`` finds a launcher."""
    found = launches_apart(environ)
    if found is None:
        return
    info = found.info
    way = f"To run the function here as rank {info.rank}, call xmp.launch instead. Or "
    way += f"{found.advice}. To launch from this process alone, set NNODES=1"
    if found.is_xmps:
        way = f"This script launches by itself: {found.advice}, or call xmp.launch, which runs the "
        way += f"function here as rank {info.rank}. To launch in each of them, set {NESTED}=1"
    raise PlanError(
        f"{found.launcher} has started this process for one device, as rank {info.rank} of "
        f"{info.world_size} ({found.given}): a launch in each of them would make a world of its "
        f"own. {way}."
    )


def _beside_others(launcher: _Launcher, environ: Env, world: int, local_world: int | None) -> bool:
    """Whether there are more processes than hosts, as far as the variables say."""
    local, hosts = _number(environ, launcher.local), _number(environ, launcher.hosts)
    if launcher is _TORCH and local is None:
        return False  # RANK may count hosts
    return bool(local) or (local_world or 1) > 1 or world > (hosts or world)


def _whole(environ: Env) -> Iterator[_Launcher]:
    """The launchers that say both a rank and a world size, the innermost one first."""
    for launcher in _innermost(environ):
        if environ.get(launcher.rank) and environ.get(launcher.world):
            _check(launcher, environ)
            yield launcher


def _innermost(environ: Env) -> Iterator[_Launcher]:
    """The launchers, an inner one before the one that it runs in.

    srun sets PMI_RANK as well, for the sake of MPI. mpiexec sets the local rank too, and its
    processes inherit Slurm's numbers from the proxies that it has started by srun.
    """
    paddles = (_PADDLE, _TRAINERS)
    exported = tuple(each for each in paddles if _is_exported(each, environ))
    yield from exported or (_TORCH,)
    yield from paddles
    yield from (_TORCH,) if exported else ()
    yield from (_JSRUN, _OPEN_MPI, _MVAPICH)
    yield from (_MPICH, _SLURM) if _MPICH.local in environ else (_SLURM, _MPICH)


def _is_exported(launcher: _Launcher, environ: Env) -> bool:
    """Whether torch's variables repeat those of Paddle's launcher.

    ``init_parallel_env`` of xmp.compat.paddle sets them; torchrun's have a run id beside them.
    """
    pairs = ((launcher.rank, _TORCH.rank), (launcher.world, _TORCH.world))
    return RUN not in environ and all(
        environ.get(own) and environ[own].strip() == environ.get(torchs) for own, torchs in pairs
    )


def _info(
    launcher: _Launcher, environ: Env, rank: int, world: int, local_world: int
) -> ReplicaInfo:
    local, host = _number(environ, launcher.local), _number(environ, launcher.host)
    if launcher is _TRAINERS:
        local = _trainers_here(environ, world)[0]
    return ReplicaInfo(
        rank=rank,
        local_rank=rank % local_world if local is None else local,
        world_size=world,
        local_world_size=local_world,
        host_index=rank // local_world if host is None else host,
    )


def _local_world(launcher: _Launcher, environ: Env, world: int) -> int | None:
    """The processes of this host; None where that is not known."""
    if launcher is _SLURM:
        return _tasks_of_this_node(environ, world)
    if launcher is _TRAINERS:
        return _trainers_here(environ, world)[1]
    own = _number(environ, launcher.local_world)
    if launcher is not _TORCH or own is not None:
        return own
    if _number(environ, _LOCAL_SIZE) is not None:
        return _number(environ, _LOCAL_SIZE)
    tasks = _tasks_of_this_node(environ, world)
    if tasks is not None and _number(environ, _SLURM.world) == world:
        return tasks  # a script has copied Slurm's numbers
    return world if _on_one_host(environ) else None


def _trainers_here(environ: Env, world: int) -> tuple[int, int]:
    """The local rank and the trainers of this host; it has all where there are no endpoints."""
    rank = _number(environ, _TRAINERS.rank) or 0
    hosts = [each.rpartition(":")[0] for each in environ.get(_ENDPOINTS, "").split(",")]
    hosts = hosts if len(hosts) == world else [""] * world
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


def _on_one_host(environ: Env) -> bool:
    """Whether a script that set torch's variables itself has all its processes on this host."""
    rank = _number(environ, _TORCH.rank)
    if _number(environ, _TORCH.local) != rank:
        return False
    nodes = next((n for n in (_number(environ, name) for name in SLURM_NODES) if n), None)
    mpi = any(environ.get(size) and environ.get(size) == environ.get(local) for size, local in MPI)
    return is_loopback(environ.get("MASTER_ADDR", "")) or nodes == 1 or mpi


def _tasks_of_this_node(environ: Env, world: int) -> int | None:
    """Slurm sets "4(x2)" or "4,3", in the order of the nodes."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get(_TASKS, ""))
    tasks = [int(count) for count, times in parts for _ in range(int(times or 1))]
    node = _number(environ, _SLURM.host) or 0
    if tasks:
        return tasks[min(node, len(tasks) - 1)]
    nodes = _number(environ, _SLURM.hosts)
    return -(-world // nodes) if nodes else None


def _given(launcher: _Launcher, environ: Env) -> str:
    names = (*launcher.names, _LOCAL_SIZE if launcher is _TORCH else _TASKS)
    return ", ".join(f"{name}={environ[name]}" for name in names if environ.get(name))


def _check(launcher: _Launcher, environ: Env) -> None:
    """Raise PlanError for numbers that cannot be: each rank must have a place of its own.

    Without a local rank, RANK may be something else: the name of a pod.
    """
    pairs = ((launcher.rank, launcher.world), (launcher.local, launcher.local_world))
    for name in launcher.names if environ.get(launcher.local) else ():
        text = environ.get(name, "").strip()
        if text and not (text.isascii() and text.isdecimal() and int(text) < _MOST):
            raise PlanError(
                f"{name}={environ[name]!r} beside {_given(launcher, environ)} is not a number that "
                "a launcher sets. Set it right, or unset all of them to launch from this process"
            )
    for rank, size in pairs:
        index, count = _number(environ, rank), _number(environ, size)
        if index is not None and count is not None and index >= count:
            raise PlanError(
                f"{rank}={index} does not fit {size}={count}. Allowed: 0 to {count - 1}. Set them "
                "right, or unset both to launch from this process"
            )


def _number(environ: Env, name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdecimal() else None
