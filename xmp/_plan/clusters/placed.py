"""Launchers that have started one process on each host, by their rows: xmp starts the replicas.

Several processes on a host are replicas themselves (``per_device``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from . import launchers
from ._base import Cluster, index_of, master, number, only_first
from ._host_texts import expand, split_port
from ._launcher import Launcher
from .launchers import foreign
from .lsf import lsf_hosts

__all__ = ["PLACED", "find", "find_foreign", "find_torchrun"]

PLACED = tuple(row for row in launchers.LAUNCHERS if row.no_address)
PORT = 29500
"""torchrun's default."""


def find_torchrun(facts: HostFacts) -> Cluster | None:
    """Return the nodes of a torchrun; None outside one or with several processes per node."""
    env, row = facts.env, launchers.TORCHRUN
    if row.mark not in env or number(env, row.local_world) != 1:
        return None
    count = number(env, row.hosts)
    index = index_of(env, row.host, row.hosts, count)
    address, port = master(env)
    if index is None or count is None or count < 2 or not address:
        return None
    # torchrun's agent serves MASTER_PORT itself: the replicas' store takes the next port.
    name = f"{row.name} ({row.host}, {row.hosts})"
    port = (port or PORT) + 1
    return Cluster(name, index, only_first(address, count), address, port, row.job_in(env))


def find(facts: HostFacts, rows: Iterable[Launcher] = PLACED) -> Cluster | None:
    """Return the hosts of an mpirun or a jsrun with one process on each; None outside one."""
    return next(filter(None, (_by_row(row, facts) for row in rows)), None)


def find_foreign(facts: HostFacts) -> Cluster | None:
    """Return the same for the launchers of other distributions."""
    return find(facts, (row for row in foreign(facts.env) if row.no_address))


def _by_row(row: Launcher, facts: HostFacts) -> Cluster | None:
    place = _one_on_each(row, facts.env)
    if place is None:
        return None
    index, count = place
    address, port = master(facts.env, otherwise=_address(row, facts, count))
    if not address:
        raise PlanError(f"{row.world}={count}, but {row.no_address}", code="XMP-H04")
    name, job = f"{row.name} ({row.rank}, {row.world})", row.job_in(facts.env)
    return Cluster(name, index, only_first(address, count), address, port, job)


def _one_on_each(row: Launcher, env: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the index of this host and the number of hosts.

    None unless the launcher has started one process on each of several hosts.
    """
    count = number(env, row.world)
    index = index_of(env, row.rank, row.world, count)
    if index is None or count is None or count < 2 or number(env, row.local_world) != 1:
        return None
    return index, count


# --- the first host -------------------------------------------------------------------------------


def _address(row: Launcher, facts: HostFacts, count: int) -> str:
    """Return the address of rank 0 where MASTER_ADDR is not set; empty where it is not known.

    With another order of hosts (``mpirun -hosts b,a``) it is another one. Then host 0 cannot bind
    the address, and says so.
    """
    if own := split_port(facts.env.get(row.address, ""))[0]:
        return own
    if row is launchers.JSRUN:  # LSF's first host is the launch node, which may run no task
        hosts = lsf_hosts(facts)
        return next(iter(hosts[1:] if len(hosts) > count else hosts), "")
    uri = facts.env.get(launchers.HNP_URI, "") if row is launchers.OPEN_MPI else ""
    found = re.search(r"tcp6?://\[?([^,;\]]+?)\]?(?:,[^;]*)?:\d+", uri)
    return found[1] if found else _of_a_scheduler(facts)


def _of_a_scheduler(facts: HostFacts) -> str:
    """Return the host on which launchers of MPI start rank 0 by default."""
    for name in launchers.NODE_LISTS:
        if facts.env.get(name):
            return expand(facts.env[name], name)[0]
    if found := lsf_hosts(facts):
        return found[0]
    lists = (
        facts.host_files.get(row.lists[0][0], "").split() for row in (launchers.PBS, launchers.OAR)
    )
    return next((hosts[0] for hosts in lists if hosts), "")
