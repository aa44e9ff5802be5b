"""The lists in which schedulers name the hosts of a job, for launchers that run inside them."""

from __future__ import annotations

from xmp._words.types import HostFacts

from .slurm import expand

__all__ = ["first_host", "lsf_hosts"]

SLURM_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
LSF_COUNTS = "LSB_MCPU_HOSTS"  # "a 4 b 4"
LSF_FILES = ("LSB_DJOB_RANKFILE", "LSB_DJOB_HOSTFILE")
FILES = ("PBS_NODEFILE", "OAR_NODEFILE")


def first_host(facts: HostFacts) -> str:
    """The host on which launchers of MPI start rank 0 by default; empty where no list has it.

    With another order of hosts (``mpirun -hosts b,a``) it is another one. Then host 0 cannot bind
    the address, and says so.
    """
    for name in SLURM_LISTS:
        if facts.env.get(name):
            return expand(facts.env[name])[0]
    if found := lsf_hosts(facts):
        return found[0]
    lists = (facts.host_files.get(name, "").split() for name in FILES)
    return next((hosts[0] for hosts in lists if hosts), "")


def lsf_hosts(facts: HostFacts) -> tuple[str, ...]:
    """The hosts of an LSF job, each once, in LSF's order; empty outside one."""
    named = facts.env.get(LSF_COUNTS, "").split()[::2]
    files = (facts.host_files.get(name, "").split() for name in LSF_FILES)
    return tuple(dict.fromkeys(named or next(filter(None, files), [])))
