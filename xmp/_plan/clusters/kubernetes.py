"""Pods of Kubernetes in which one process each has been started: Kubeflow's, an Indexed Job's.

Kubeflow sets the defaults of torchrun's options; a torchrun in the pod sets its own, which say
more. RANK is the pod's index too, WORLD_SIZE is pods times ``nprocPerNode``; older operators set
only these, and WORLD_SIZE counts pods. The pods of an Indexed Job are called ``<job>-<index>``;
without NNODES in the manifest each of them is a job of its own (a sweep).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, master, nodes, number, only_first
from ._host_texts import is_loopback
from .launchers import INDEXED_JOB, KUBEFLOW, RENDEZVOUS, TORCHRUN

__all__ = ["find_indexed", "find_kubeflow"]

MASTER_POD = re.compile(r".+-master-0(\..*)?")  # "digits-master-0"
Found = tuple[int, int, str, int, str]
"""The pod, the number of pods, address and port of pod 0, and the variables that say so."""


def find_kubeflow(facts: HostFacts) -> Cluster | None:
    """Return the pods of the job; None outside one, in an elastic one, and under a torchrun."""
    env = facts.env
    if TORCHRUN.mark in env or RENDEZVOUS in env:
        return None
    found = _by_torchruns_options(env) or _by_rank(facts)
    if found is None:
        return None
    index, count, address, port, name = found
    if index >= count:
        raise PlanError(
            f"{name}: pod {index} does not fit {count} pods. Allowed: 0 to {count - 1}.",
            code="XMP-P08",
        )
    if is_loopback(address) and index == 0 and MASTER_POD.fullmatch(facts.hostname):
        address = facts.hostname  # operators before 1.4 give the master pod "localhost"
    return Cluster(f"{KUBEFLOW.name} ({name})", index, only_first(address, count), address, port)


def _by_torchruns_options(env: Mapping[str, str]) -> Found | None:
    row = KUBEFLOW
    least, _, most = env.get(row.hosts, "").strip().partition(":")
    if not least.isdecimal() or (most or least) != least:
        return None
    count, index = int(least), number(env, row.host)
    address, port = master(env, launcher=row if env.get(row.address, "").strip() else TORCHRUN)
    if count < 2 or index is None or not address:
        return None
    return index, count, address, port, f"{row.host}, {row.hosts}"


def _by_rank(facts: HostFacts) -> Found | None:
    """Return what RANK and WORLD_SIZE say: pods, where no local rank says that they are processes.

    Operators that set no PET_* make the first pod a Master.
    """
    env, row = facts.env, TORCHRUN
    if INDEXED_JOB.mark not in env or KUBEFLOW.hosts in env or row.local_rank in env:
        return None
    index, count = number(env, row.rank), number(env, row.world)
    address, port = master(env)
    meant = MASTER_POD.fullmatch(address) or MASTER_POD.fullmatch(facts.hostname)
    if index is None or count is None or count < 2 or not meant:
        return None
    return index, count, address, port, f"{row.rank}, {row.world}"


def find_indexed(facts: HostFacts) -> Cluster | None:
    """Return the pods of this Indexed Job; None outside one or where NNODES is not set."""
    env, row = facts.env, INDEXED_JOB
    index, count = number(env, row.host), nodes(env)
    if index is None or row.mark not in env or count is None or count < 2:
        return None
    if index >= count:
        raise PlanError(
            f"{row.host}={index} does not fit {row.hosts}={count}. Set {row.hosts} to the Job's "
            "completions.",
            code="XMP-P08",
        )
    address, port = master(env)
    address = address or _first_pod(facts.hostname, index)
    name = f"{row.name} ({row.host}, {row.hosts})"
    return Cluster(name, index, only_first(address, count), address, port)


def _first_pod(hostname: str, index: int) -> str:
    """Return ``train-0.svc`` for ``train-3.svc``."""
    pod, dot, domain = hostname.partition(".")
    if not pod.endswith(f"-{index}"):
        raise PlanError(
            f"{INDEXED_JOB.host}={index}, but this pod is called {hostname!r}, so pod 0's name is "
            "not known. Set MASTER_ADDR to it in the manifest (with a headless service).",
            code="XMP-H04",
        )
    return f"{pod[: -len(str(index))]}0{dot}{domain}"
