"""The ``slurm`` engine: the nodes of the allocation in which this program runs, reached by srun.

The program runs once, in ``salloc``, a script of ``sbatch``, or a notebook started by one. Where
``srun`` starts it on each node, the program calls ``xmp.spawn`` there instead.

The stream to a node is the standard input and output of a step of one task. Slurm does not encrypt
it, so its frames are sealed by a secret, which goes with the variables of the step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from xmp._plan.clusters._host_texts import expand
from xmp._words.errors import PlanError, brief, wrong_type

from . import count_of
from .remote import RemoteEngine
from .remote_group import Target

__all__ = ["engine"]

_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_STEP = (
    "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--mpi=none", "--export=ALL",
    "--unbuffered", "--quiet",
)  # fmt: skip
"""A step beside others of the job (``--overlap``: Slurm 20.11), with all of the node's cores."""
_FOR_SRUN = ("SLURM_CONF", "SLURM_CLUSTERS")
"""The only variables of Slurm that a step gets from here. Others stand for options of srun: with
SLURM_LABELIO it writes numbers into the stream (srun(1), INPUT ENVIRONMENT VARIABLES)."""
_ALLOWED = ", or the names of nodes of the allocation, or None for all of them"


class SlurmEngine(RemoteEngine):
    """Each host is a node of this job's allocation."""

    name = "slurm"
    sealed = True
    needs_hosts = False
    wants = f"a whole number{_ALLOWED}"

    def _environment(self) -> dict[str, str]:
        kept = super()._environment().items()
        return {n: v for n, v in kept if not n.startswith(("SLURM_", "SRUN_")) or n in _FOR_SRUN}

    def _targets(self, hosts: object) -> Sequence[Target]:
        job, nodes = _allocation()
        program = shutil.which("srun")
        if program is None:
            raise PlanError('engine="slurm": there is no srun on the PATH', code="XMP-H08")
        prefix = (program, f"--jobid={job}", *_STEP)
        return [
            Target(
                node,
                (*prefix, f"--nodelist={node}", "sh", "-c"),
                f"srun --overlap -w {node}",
                node,
            )
            for node in _chosen(hosts, nodes)
        ]


def _allocation() -> tuple[str, tuple[str, ...]]:
    """Return the number of the job and its nodes. Raise PlanError outside of one."""
    job = os.environ.get("SLURM_JOB_ID", "")
    name = next((each for each in _LISTS if os.environ.get(each)), "")
    if not job.isdigit() or not name:
        raise PlanError(
            'engine="slurm": this process is in no Slurm allocation (SLURM_JOB_ID is not set). '
            "Start it in one: salloc -N 2 python train.py",
            code="XMP-H05",
        )
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdigit() and int(tasks) > 1:
        raise PlanError(
            f'engine="slurm": srun has started {tasks} tasks (SLURM_STEP_NUM_TASKS), each of which '
            "would launch on all nodes. Start the program once in the allocation, or call "
            "xmp.spawn in each task",
            code="XMP-P09",
        )
    return job, expand(os.environ[name], name)


def _chosen(hosts: object, nodes: Sequence[str]) -> Sequence[str]:
    if hosts is None:
        return nodes
    if isinstance(hosts, str):
        hosts = [each.strip() for each in hosts.split(",")]
    if not isinstance(hosts, (list, tuple)):
        count = count_of(hosts, _ALLOWED)
        if count > len(nodes):
            raise PlanError(
                f"hosts={count}: the allocation has {len(nodes)} nodes ({', '.join(nodes)})",
                code="XMP-H05",
            )
        return nodes[:count]
    if not all(isinstance(each, str) for each in hosts):
        raise wrong_type("hosts", SlurmEngine.wants, hosts)
    strange = [each for each in hosts if each not in nodes]
    if strange or not hosts or len({*hosts}) < len(hosts):
        raise PlanError(
            f"hosts={brief(hosts)}: name each node once. The allocation has {', '.join(nodes)}",
            code="XMP-H05",
        )
    return hosts


engine = SlurmEngine()
