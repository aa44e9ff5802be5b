"""Slurm: a step with one task per node (``srun --ntasks-per-node=1``)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, count, master, number
from ._host_texts import expand
from .launchers import NODE_LISTS, SLURM, TASKS

__all__ = ["find", "tasks_here"]

LIST = NODE_LISTS[0]
"""Set by srun, not in a batch script."""


def find(facts: HostFacts) -> Cluster | None:
    """Return the nodes of this step; None outside a step, or where a node runs several tasks."""
    env = facts.env
    if LIST not in env or SLURM.rank not in env:
        return None
    addresses = expand(env[LIST], LIST)
    nodes = number(env, SLURM.hosts) or len(addresses)
    tasks = number(env, SLURM.world) or number(env, "SLURM_NTASKS") or nodes
    if nodes < 2 or tasks != nodes:
        return None
    index = number(env, SLURM.host)
    if index is None or index >= nodes or len(addresses) != nodes:
        raise PlanError(
            f"{SLURM.host}={env.get(SLURM.host)!r}, {SLURM.hosts}={nodes} and {LIST}={env[LIST]!r} "
            "disagree. Start one task per node with srun --ntasks-per-node=1.",
            code="XMP-P08",
        )
    # A batch script sets MASTER_ADDR where a node's name is not the address for the others.
    first, port = master(env, otherwise=addresses[0])
    name = f"{SLURM.name} ({SLURM.host}, {LIST})"
    return Cluster(name, index, (first, *addresses[1:]), first, port, SLURM.job_in(env))


def tasks_here(env: Mapping[str, str], world: int) -> int | None:
    """Return the tasks of this node; None where that is not known.

    Slurm sets "4(x2)" or "4,3", in the order of the nodes.
    """
    node, tasks = count(env, SLURM.host) or 0, None
    for here, times in re.findall(r"(\d{1,9})(?:\(x(\d{1,9})\))?", env.get(TASKS, "")):
        tasks = int(here)
        node -= int(times or 1)
        if node < 0:
            break
    if tasks is not None:  # the last one's, where the list is too short
        return tasks
    nodes = count(env, SLURM.hosts)
    return -(-world // nodes) if nodes else None
