"""IBM Spectrum LSF: a job step of jsrun, or tasks of blaunch, with one process on each host.

jsrun     JSM_NAMESPACE_RANK, _SIZE, _LOCAL_RANK and _LOCAL_SIZE (lightning_fabric 2.6.6,
          plugins/environments/lsf.py; Open MPI's own tests read the fourth). It sets Open MPI's
          variables as well, without an address
blaunch   LSF_PM_TASKID counts the tasks from 1 (Open MPI 4, orte/mca/ess/lsf/ess_lsf_module.c).
          Without host names it starts one task for each slot (IBM Spectrum LSF, "blaunch")
both      LSB_MCPU_HOSTS "a 4 b 4", LSB_DJOB_RANKFILE: a file with one line for each slot. The first
          host is the launch node where jsrun is used, and runs no task (lightning_fabric)

The script of a job itself runs once, on the first host, without these (``announced`` refuses it).
"""

from __future__ import annotations

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, master, number, one_on_each
from ._host_lists import lsf_hosts

__all__ = ["find", "find_step"]

RANK = "JSM_NAMESPACE_RANK"
SIZE = "JSM_NAMESPACE_SIZE"
LOCAL_RANK = "JSM_NAMESPACE_LOCAL_RANK"
PER_HOST = "JSM_NAMESPACE_LOCAL_SIZE"
TASK = "LSF_PM_TASKID"
JOB = "LSB_JOBID"
HOSTS = "LSB_MCPU_HOSTS"


def find_step(facts: HostFacts) -> Cluster | None:
    """The hosts of a jsrun with one process on each; None outside one."""
    env = facts.env
    place = one_on_each(env, RANK, SIZE, PER_HOST)
    if place is None:
        return None
    index, count = place
    hosts = lsf_hosts(facts)
    computing = hosts[1:] if len(hosts) > count else hosts
    address, port = master(env, otherwise=computing[0] if computing else "")
    if not address:
        raise PlanError(
            f"{SIZE}={count}, but LSF lists no hosts ({HOSTS}, LSB_DJOB_RANKFILE), so the address "
            "of rank 0 is not known. Set MASTER_ADDR on every host (jsrun -E MASTER_ADDR=…)."
        )
    addresses = tuple(address if i == 0 else "" for i in range(count))
    name = f"LSF's jsrun ({RANK}, {SIZE})"
    return Cluster(name, index, addresses, address, port, env.get(JOB, ""))


def find(facts: HostFacts) -> Cluster | None:
    """The hosts of an LSF job on which blaunch has started one task each; None outside one."""
    task, hosts = number(facts.env, TASK), lsf_hosts(facts)
    if not task or len(hosts) < 2:
        return None
    index = _index(facts.hostname, hosts)
    if (task - 1 if index is None else index) != task - 1 or task > len(hosts):
        raise PlanError(
            f"{TASK}={task} on {facts.hostname}, but the hosts of this LSF job are "
            f"{' '.join(hosts)}. Start one task on each, in this order: "
            f'blaunch -z "{" ".join(hosts)}" python …'
        )
    address, port = master(facts.env, otherwise=hosts[0])
    addresses = (address, *hosts[1:])
    name = f"LSF's blaunch ({TASK}, {HOSTS})"
    return Cluster(name, task - 1, addresses, address, port, facts.env.get(JOB, ""))


def _index(hostname: str, hosts: tuple[str, ...]) -> int | None:
    """The place of this host, with or without its domain; None where the list has other names."""
    names = [name.partition(".")[0] for name in hosts]
    own = hostname.partition(".")[0]
    return names.index(own) if own in names else None
