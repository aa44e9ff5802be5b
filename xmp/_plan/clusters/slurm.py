"""Slurm: a step with one task per node (``srun --ntasks-per-node=1``)."""

from __future__ import annotations

import re

from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, master, number

__all__ = ["expand", "find"]

NODE_LIST = "SLURM_STEP_NODELIST"  # "n[001-003,7],login-1"; set by srun, not in a batch script
NODES = "SLURM_STEP_NUM_NODES"
TASKS = "SLURM_STEP_NUM_TASKS"
TASK = "SLURM_PROCID"
NODE = "SLURM_NODEID"
STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID")


def find(facts: HostFacts) -> Cluster | None:
    """The nodes of this step; None outside a step, or where a node runs several tasks."""
    env = facts.env
    if NODE_LIST not in env or TASK not in env:
        return None
    addresses = expand(env[NODE_LIST])
    count = number(env, NODES) or len(addresses)
    tasks = number(env, TASKS) or number(env, "SLURM_NTASKS") or count
    if count < 2 or tasks != count:
        return None
    index = number(env, NODE)
    if index is None or index >= count or len(addresses) != count:
        raise PlanError(
            f"{NODE}={env.get(NODE)!r}, {NODES}={count} and {NODE_LIST}={env[NODE_LIST]!r} "
            "disagree. Start one task per node with srun --ntasks-per-node=1."
        )
    # A batch script sets MASTER_ADDR where a node's name is not the address for the others.
    first, port = master(env, otherwise=addresses[0])
    addresses = (first, *addresses[1:])
    step = ".".join(filter(None, map(env.get, STEP)))
    return Cluster(f"Slurm ({NODE}, {NODE_LIST})", index, addresses, first, port, step)


def expand(text: str) -> tuple[str, ...]:
    """The nodes of a Slurm node list, in its order: ``"n[08-10,12],x"`` is n08 n09 n10 n12 x."""
    names: list[str] = []
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        before, bracket, rest = entry.partition("[")
        if not bracket:
            names.append(entry)
            continue
        ranges, _, after = rest.partition("]")
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if not (is_number(first) and is_number(last or first)):
                raise PlanError(f'{NODE_LIST}: {entry!r} is malformed. Allowed: "n[08-10,12],x".')
            for value in range(int(first), int(last or first) + 1):
                names += expand(f"{before}{value:0{len(first)}d}{after}")
    return tuple(names)
