"""Variables that announce other hosts, where no module of this package finds the job's hosts.

A launch of this host alone would train beside those of the other hosts, each with gradients of its
own, and none would notice. What is set by which launcher, and where that was found: ``launchers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xmp._words.errors import PlanError

from . import launchers
from ._base import count
from ._host_texts import is_loopback, split_port
from ._launcher import HOSTS, Launcher
from .launchers import foreign

__all__ = ["SIZED", "refuse"]

Env = Mapping[str, str]

_SAY_MORE = {
    *(launchers.TORCHRUN, launchers.SLURM, launchers.BY_HAND, launchers.KUBEFLOW),
    *(launchers.INDEXED_JOB, launchers.JAX, launchers.JAXJOB),
}
"""Rows of which a function below knows more than what their numbers say."""
_ROWS = [row for row in launchers.LAUNCHERS if row not in _SAY_MORE]
_SIZED = [row for row in _ROWS if row.world and row.local_world]
SIZED = sorted(_SIZED, key=lambda row: row is launchers.JSRUN)  # it sets Open MPI's, too
"""Launchers that say how many processes there are, and how many of them are on this host."""
COUNTED = [row for row in _ROWS if row.hosts]
"""Launchers that say how many hosts there are."""
FIXED = "give the job a fixed number of pods: a Master replica and no elasticPolicy"


@dataclass(frozen=True)
class Announced:
    """What announces other hosts, and how to launch on all of them."""

    names: tuple[str, ...]
    what: str
    advice: str = HOSTS


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
                "NNODES=1.",
                code="XMP-P08",
            )
        if found:
            return


def _torchrun(env: Env) -> Announced | bool:
    row = launchers.TORCHRUN
    several, whole = (count(env, row.hosts) or 1) > 1, row.mark in env
    if several or (whole and _world(env) > _local_world(env)):
        names = (row.hosts, row.world, row.local_world, row.address)
        missing = [name for name in row.numbers if not env.get(name, "").strip()]
        what = f"torchrun runs on several hosts{_but(missing)}"
        return Announced(names, what, HOSTS if missing else row.advice)
    return whole


def _by_hand(env: Env) -> Announced | bool:
    row = launchers.BY_HAND
    names = (row.hosts, row.host, row.address)
    hosts, index = count(env, row.hosts), count(env, row.host)
    if (hosts or 1) > 1 and index is None:
        return Announced(names, f"there are {hosts} hosts, but {row.host} is not set")
    if index and hosts is None:
        return Announced(names, f"this is host {index}, but {row.hosts} is not set")
    return False


def _torch(env: Env) -> Announced | bool:
    """RANK and WORLD_SIZE: per host in a PyTorchJob, else of a process whose host is not known."""
    row = launchers.TORCHRUN
    rank, world = count(env, row.rank), _world(env)
    if rank is None or world < 2 or (_local_world(env) == world and row.local_rank in env):
        return False
    names = (row.rank, row.world, row.local_rank, row.local_world, *row.more, row.address)
    advice = HOSTS
    if row.local_rank not in env and count(env, row.local_world):
        advice = f"set {row.local_rank} as well"
    elif row.local_rank not in env:
        advice = (
            f"set NNODES={world} NODE_RANK={rank} on this host, and likewise on the others, if "
            f"each of the {world} processes has a host to itself"
        )
    elif not count(env, row.local_world):
        advice += f", or, if the {world} processes have one device each, set {row.local_world}"
    return Announced(names, f"this is process {rank} of {world}", advice)


def _kubeflow(env: Env) -> Announced | bool:
    row = launchers.KUBEFLOW
    text = env.get(row.hosts, "").strip()
    most = text.rpartition(":")[2]
    if text and not most.isdecimal():
        return Announced((row.hosts,), 'it is neither a number nor a range such as "1:4"')
    names = (row.hosts, row.host, row.address)
    if not text and (index := count(env, row.host)):
        return Announced(names, f"this is host {index}, but {row.hosts} is not set")
    if int(most or 1) < 2:
        return False
    rank, master = (env.get(name) for name in names[1:])
    elastic = ":" in text or launchers.RENDEZVOUS in env
    advice = _by_numbers(most, rank, master) if rank and master else HOSTS
    what = f"there are {text.replace(':', ' to ')} hosts"
    if not elastic:
        what += _but([name for name in names[1:] if not env.get(name, "").strip()])
    return Announced(names, what, FIXED if elastic else advice)


def _jax(env: Env) -> Announced | bool:
    for row in (launchers.JAX, launchers.JAXJOB):
        processes, host = count(env, row.hosts), split_port(env.get(row.address, ""))[0]
        if (processes or 1) > 1 and host and not is_loopback(host):
            advice = _by_numbers(processes, env.get(row.host) or "0", host)
            what = f"there are {processes} processes, one for each host"
            return Announced((row.hosts, row.host, row.address), what, advice)
    return False


def _but(missing: Sequence[str]) -> str:
    """Return what is missing, to follow what is announced."""
    if not missing:
        return ""
    return f", but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set"


def _by_numbers(hosts: object, index: str, address: str) -> str:
    own = f"NNODES={hosts} NODE_RANK={index} MASTER_ADDR={address}"
    return f"set {own} on this host, and likewise on the others"


def _sizes(env: Env, rows: Iterable[Launcher] = SIZED) -> Announced | bool:
    """More processes than there are on this host."""
    for row in rows:
        size, here = count(env, row.world), count(env, row.local_world)
        if size is None or (here is None and launchers.SLURM.hosts in env):
            continue  # srun sets PMI_SIZE as well: Slurm's own variables say more
        if size in (1, here):
            return True
        what = f"{row.kind} runs on several hosts"
        return Announced((row.world, row.local_world), what, row.announced or row.advice)
    return False


def _slurm(env: Env) -> Announced | bool:
    name = next((name for name in launchers.NODES if count(env, name)), None)
    components = count(env, launchers.COMPONENTS) or 1
    if components > 1:
        what = f"the job has {components} components, each on hosts of its own"
        return Announced((launchers.COMPONENTS, launchers.NODE_LISTS[1]), what)
    if name is None:
        return False
    if count(env, name) == 1:
        return True
    names = (name, launchers.SLURM.world, launchers.NODE_LISTS[1])
    return Announced(names, f"the job has {env[name]} nodes", launchers.SLURM.advice)


def _lists(env: Env, rows: Iterable[Launcher] = launchers.LAUNCHERS) -> Announced | bool:
    for row in rows:
        for name, read in row.lists:
            hosts = len(set(read(env.get(name, ""))))
            if hosts > 1:
                return Announced((name,), f"the job has {hosts} hosts", row.advice)
    return False


def _counts(env: Env, rows: Iterable[Launcher] = COUNTED) -> Announced | bool:
    for row in rows:
        # NHOSTS is a common word: Grid Engine sets its mark, too.
        if (not row.mark or row.mark in env) and (count(env, row.hosts) or 1) > 1:
            advice = row.announced or row.advice
            return Announced((row.hosts,), f"the job has {env[row.hosts]} hosts", advice)
    return False


def _foreign(env: Env) -> Announced | bool:
    rows = foreign(env)
    sized = (row for row in rows if row.world and row.local_world)
    return _sizes(env, sized) or _lists(env, rows) or _counts(env, (r for r in rows if r.hosts))


def _world(env: Env) -> int:
    return count(env, launchers.TORCHRUN.world) or 1


def _local_world(env: Env) -> int:
    return count(env, launchers.TORCHRUN.local_world) or count(env, launchers.DEEPSPEEDS) or 1


LOOKS: tuple[Look, ...] = (
    *(_torchrun, _by_hand, _torch, _kubeflow, _jax, _sizes, _slurm, _lists, _counts, _foreign),
)
"""An inner launcher before the one that it runs in."""
