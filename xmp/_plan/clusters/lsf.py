"""IBM Spectrum LSF: the tasks of blaunch, one on each host of a job.

LSF_PM_TASKID counts the tasks from 1. Without host names blaunch starts one for each slot. The
script of a job itself runs once, on the first host, without it (``announced`` refuses it).
"""

from __future__ import annotations

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, master, number
from .launchers import LSF, RANK_FILES

__all__ = ["find", "lsf_hosts"]


def find(facts: HostFacts) -> Cluster | None:
    """Return the hosts on which blaunch has started one task each; None outside an LSF job."""
    task, hosts = number(facts.env, LSF.rank), lsf_hosts(facts)
    if not task or len(hosts) < 2:
        return None
    index = _index(facts.hostname, hosts)
    if (task - 1 if index is None else index) != task - 1 or task > len(hosts):
        raise PlanError(
            f"{LSF.rank}={task} on {facts.hostname}, but the hosts of this LSF job are "
            f"{' '.join(hosts)}. Start one task on each, in this order: "
            f'blaunch -z "{" ".join(hosts)}" python …',
            code="XMP-P08",
        )
    address, port = master(facts.env, otherwise=hosts[0])
    name = f"{LSF.name} ({LSF.rank}, {LSF.lists[0][0]})"
    return Cluster(name, task - 1, (address, *hosts[1:]), address, port, LSF.job_in(facts.env))


def lsf_hosts(facts: HostFacts) -> tuple[str, ...]:
    """Return the hosts of an LSF job, each once, in LSF's order; empty outside one."""
    name, read = LSF.lists[0]
    files = (facts.host_files.get(name, "").split() for name in reversed(RANK_FILES))
    return tuple(dict.fromkeys(read(facts.env.get(name, "")) or next(filter(None, files), [])))


def _index(hostname: str, hosts: tuple[str, ...]) -> int | None:
    """Return the place of this host, with or without its domain; None where it is not listed."""
    names = [name.partition(".")[0] for name in hosts]
    own = hostname.partition(".")[0]
    return names.index(own) if own in names else None
