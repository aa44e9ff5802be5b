"""The rank of a process that another launcher started for one device: torchrun, Slurm, MPI.

The other modules of this package find hosts on which xmp itself starts the replicas. Here another
launcher has started them: xmp's functions describe its world, and a launch of each of its processes
would make a world of its own. The variables, and who sets them: ``launchers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from xmp._words.errors import PlanError
from xmp._words.replica_info import ReplicaInfo

from ._base import count
from ._host_texts import is_loopback
from ._launcher import Launcher
from .announced import SIZED
from .launchers import (
    AGENT_STORE,
    BY_HAND,
    DEEPSPEEDS,
    ENDPOINTS,
    INSIDE,
    LAUNCHERS,
    MPICH,
    NODES,
    OTHER,
    PADDLE,
    SLURM,
    TASKS,
    TORCHRUN,
    TRAINERS,
    XMP_RUN,
    foreign,
)
from .slurm import tasks_here

__all__ = ["INSIDE", "NESTED", "Started", "identity", "launches_apart", "refuse", "started"]

Env = Mapping[str, str]
RUN = TORCHRUN.mark
NESTED = "XMP_NESTED"
"""The user's word that each replica of `xmp run` is to launch a world of its own."""
_RANKED = [row for row in LAUNCHERS if row.rank and row.world]
_MOST = 2**31


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
        return self.launcher == XMP_RUN.name


def identity(environ: Env) -> ReplicaInfo:
    """Return rank and world size by the innermost launcher that says them; else a world of one.

    Without the size of this host, all processes are assumed to be on it.
    """
    for launcher in _whole(environ):
        rank, world = count(environ, launcher.rank), count(environ, launcher.world)
        if rank is not None and world:
            local_world = _local_world(launcher, environ, world) or world
            return _info(launcher, environ, rank, world, local_world)
    return ReplicaInfo(rank=0, local_rank=0, world_size=1, local_world_size=1)


def started(environ: Env) -> Started | None:
    """Return what a launcher has made of this process, one of several on this host.

    None where it starts one process on each host: there xmp starts the replicas. None in a replica
    of xmp's too, unless a launcher has started it there, or `xmp run` did: only these set
    TORCHELASTIC_RUN_ID, and even a single process of theirs is a replica.
    """
    if INSIDE in environ and RUN not in environ:
        return None
    for launcher in _whole(environ):
        rank, world = count(environ, launcher.rank), count(environ, launcher.world)
        if rank is None or not world:
            continue
        local_world = _local_world(launcher, environ, world)
        is_one_of = world > 1 and _beside_others(launcher, environ, world, local_world)
        if not (is_one_of or INSIDE in environ):
            return None
        info = _info(launcher, environ, rank, world, local_world or world)
        is_torchs = launcher is TORCHRUN or _is_exported(launcher, environ)
        row = _of_torchs(environ) if launcher is TORCHRUN else launcher
        return Started(row.name, info, _given(launcher, environ), row.advice, is_torchs)
    return None


def _of_torchs(environ: Env) -> Launcher:
    """Return which launcher has set torchrun's variables."""
    if RUN not in environ:
        return OTHER
    is_xmps = INSIDE in environ and environ.get(AGENT_STORE) == "False"
    return XMP_RUN if is_xmps else TORCHRUN


def launches_apart(environ: Env) -> Started | None:
    """Return what ``started`` does, where a launch in each process would be a world of its own.

    ``NNODES=1`` says that this is meant; every replica of `xmp run` has that, and there it is
    ``XMP_NESTED=1``. A replica of any other launch may launch.
    """
    found = started(environ)
    if found is not None and found.is_xmps:
        meant = found.info.world_size == 1 or count(environ, NESTED) == 1
    else:
        meant = INSIDE in environ or count(environ, BY_HAND.hosts) == 1
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
        f"own. {way}.",
        code="XMP-P09",
    )


def _beside_others(launcher: Launcher, environ: Env, world: int, local_world: int | None) -> bool:
    """Return whether there are more processes than hosts, as far as the variables say."""
    local, hosts = count(environ, launcher.local_rank), count(environ, launcher.hosts)
    if launcher is TORCHRUN and local is None:
        return False  # RANK may count hosts
    return bool(local) or (local_world or 1) > 1 or world > (hosts or world)


def _whole(environ: Env) -> Iterator[Launcher]:
    """Yield the launchers that say both a rank and a world size, the innermost one first."""

    def whole(rows: Iterable[Launcher]) -> list[Launcher]:
        return [row for row in rows if environ.get(row.rank) and environ.get(row.world)]

    _check_half(environ)
    for row in _innermost(whole(_RANKED), environ) or whole(foreign(environ)):
        _check(row, environ)
        yield row


def _innermost(rows: list[Launcher], environ: Env) -> list[Launcher]:
    """Return the launchers, an inner one before the one that it runs in.

    srun sets PMI_RANK as well, for the sake of MPI. mpiexec sets the local rank too, and its
    processes inherit Slurm's numbers from the proxies that it has started by srun.
    """
    paddles = [row for row in rows if row in (PADDLE, TRAINERS)]
    if exported := [row for row in paddles if _is_exported(row, environ)]:
        rows = [*dict.fromkeys((*exported, *paddles, *rows))]
    return sorted(rows, key=lambda row: row is MPICH and row.local_rank not in environ)


def _is_exported(launcher: Launcher, environ: Env) -> bool:
    """Return whether torch's variables repeat those of Paddle's launcher.

    ``init_parallel_env`` of xmp.compat.paddle sets them; torchrun's have a run id beside them.
    """
    pairs = ((launcher.rank, TORCHRUN.rank), (launcher.world, TORCHRUN.world))
    return RUN not in environ and all(
        environ.get(own) and environ[own].strip() == environ.get(torchs) for own, torchs in pairs
    )


def _info(launcher: Launcher, environ: Env, rank: int, world: int, local_world: int) -> ReplicaInfo:
    local, host = count(environ, launcher.local_rank), count(environ, launcher.host)
    if launcher is TRAINERS:
        local = _trainers_here(environ, world)[0]
    return ReplicaInfo(
        rank=rank,
        local_rank=rank % local_world if local is None else local,
        world_size=world,
        local_world_size=local_world,
        host_index=rank // local_world if host is None else host,
    )


def _local_world(launcher: Launcher, environ: Env, world: int) -> int | None:
    """Return the processes of this host; None where that is not known."""
    if launcher is SLURM:
        return tasks_here(environ, world)
    if launcher is TRAINERS:
        return _trainers_here(environ, world)[1]
    own = count(environ, launcher.local_world)
    if launcher is not TORCHRUN or own is not None:
        return own
    if count(environ, DEEPSPEEDS) is not None:
        return count(environ, DEEPSPEEDS)
    tasks = tasks_here(environ, world)
    if tasks is not None and count(environ, SLURM.world) == world:
        return tasks  # a script has copied Slurm's numbers
    return world if _on_one_host(environ) else None


def _trainers_here(environ: Env, world: int) -> tuple[int, int]:
    """Return the local rank and the trainers of this host: all where there are no endpoints."""
    rank = count(environ, TRAINERS.rank) or 0
    hosts = [each.rpartition(":")[0] for each in environ.get(ENDPOINTS, "").split(",")]
    hosts = hosts if len(hosts) == world else [""] * world
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


def _on_one_host(environ: Env) -> bool:
    """Return whether a script that set torch's variables has all its processes on this host."""
    if count(environ, TORCHRUN.local_rank) != count(environ, TORCHRUN.rank):
        return False
    nodes = next((n for n in (count(environ, name) for name in NODES) if n), None)
    sizes = ((environ.get(row.world), environ.get(row.local_world)) for row in SIZED)
    all_here = any(size and size == local for size, local in sizes)
    return is_loopback(environ.get(TORCHRUN.address, "")) or nodes == 1 or all_here


def _given(launcher: Launcher, environ: Env) -> str:
    names = (*launcher.numbers, DEEPSPEEDS if launcher is TORCHRUN else TASKS)
    return ", ".join(f"{name}={environ[name]}" for name in names if environ.get(name))


def _check_half(environ: Env) -> None:
    """Raise PlanError where all that ``init_process_group`` reads is set except for the rank.

    Lightning's launcher sets NODE_RANK and LOCAL_RANK in its place (lightning_fabric 2.6.6,
    strategies/launchers/subprocess_script.py); a program that launches on this host alone may have
    the rest, as in torch's tutorial.
    """
    row, world = TORCHRUN, count(environ, TORCHRUN.world) or 1
    numbered = any(map(environ.get, (row.rank, row.local_rank, BY_HAND.host, BY_HAND.hosts)))
    if (
        world > 1
        and not numbered
        and _meets(row, environ)
        and not is_loopback(environ[row.address])
    ):
        given = ", ".join(f"{name}={environ[name]}" for name in (row.world, row.address, row.port))
        raise PlanError(
            f"{given}: this is one of {world} processes, but {row.rank} is not set. Set it in each "
            "of them, from 0 up, or unset all of these to launch from this process",
            code="XMP-P08",
        )


def _meets(launcher: Launcher, environ: Env) -> bool:
    """Return whether the variables say where the processes meet."""
    return bool(environ.get(launcher.address) and environ.get(launcher.port))


def _check(launcher: Launcher, environ: Env) -> None:
    """Raise PlanError for numbers that cannot be: each rank must have a place of its own.

    Without a local rank or a place to meet, RANK may be something else: the name of a pod.
    """
    pairs = ((launcher.rank, launcher.world), (launcher.local_rank, launcher.local_world))
    is_its = environ.get(launcher.local_rank) or _meets(launcher, environ)
    for name in launcher.numbers if is_its else ():
        text = environ.get(name, "").strip()
        if text and not (text.isascii() and text.isdecimal() and int(text[:20]) < _MOST):
            raise PlanError(
                f"{name}={environ[name]!r} beside {_given(launcher, environ)} is not a number that "
                "a launcher sets. Set it right, or unset all of them to launch from this process",
                code="XMP-P08",
            )
    for rank, size in pairs:
        index, most = count(environ, rank), count(environ, size)
        if index is not None and most is not None and index >= most:
            raise PlanError(
                f"{rank}={index} does not fit {size}={most}. Allowed: 0 to {most - 1}. Set them "
                "right, or unset both to launch from this process",
                code="XMP-P08",
            )
