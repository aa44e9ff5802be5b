"""Kubeflow: the pods of a PyTorchJob or a TrainJob, in which one process each has been started.

Trainer v2   PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT, of a TrainJob with a torch
             runtime (kubeflow/trainer 2.3, pkg/runtime/framework/plugins/torch/torch.go)
PyTorchJob   the same, and RANK, the pod's index too, WORLD_SIZE, pods times ``nprocPerNode``,
             MASTER_ADDR, MASTER_PORT (kubeflow/training-operator 1.9, pkg/controller.v1/pytorch/
             envvar.go, master.go). Older operators set only those without PET_, and WORLD_SIZE
             counts pods

PET_* are the defaults of torchrun's options (torch 2.13, torch/distributed/run.py, ``env``): a
program that torchrun has started in the pod has torchrun's own variables, which say more. An
elastic job (PET_RDZV_ENDPOINT, PET_NNODES=1:4) has no fixed hosts: ``announced`` refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, is_loopback, master, number

__all__ = ["find"]

RUN = "TORCHELASTIC_RUN_ID"
POD = "KUBERNETES_SERVICE_HOST"
MASTER_POD = re.compile(r".+-master-0(\..*)?")  # "digits-master-0"


def find(facts: HostFacts) -> Cluster | None:
    """The pods of the job; None outside one, in an elastic one, and where torchrun runs in it."""
    env = facts.env
    if RUN in env or "PET_RDZV_ENDPOINT" in env:
        return None
    found = _by_torchruns_options(env) or _by_rank(facts)
    if found is None:
        return None
    index, count, address, port, name = found
    if index >= count:
        raise PlanError(
            f"{name}: pod {index} does not fit {count} pods. Allowed: 0 to {count - 1}."
        )
    if is_loopback(address) and index == 0 and MASTER_POD.fullmatch(facts.hostname):
        address = facts.hostname  # operators before 1.4 give the master pod "localhost"
    addresses = tuple(address if i == 0 else "" for i in range(count))
    return Cluster(f"Kubeflow ({name})", index, addresses, address, port)


Found = tuple[int, int, str, int, str]
"""The pod, the number of pods, address and port of pod 0, and the variables that say so."""


def _by_torchruns_options(env: Mapping[str, str]) -> Found | None:
    least, _, most = env.get("PET_NNODES", "").strip().partition(":")
    if not least.isdecimal() or (most or least) != least:
        return None
    count, index = int(least), number(env, "PET_NODE_RANK")
    own = "PET_" if env.get("PET_MASTER_ADDR", "").strip() else ""
    address, port = master(env, prefix=own)
    if count < 2 or index is None or not address:
        return None
    return index, count, address, port, "PET_NODE_RANK, PET_NNODES"


def _by_rank(facts: HostFacts) -> Found | None:
    """RANK and WORLD_SIZE count pods only where no local rank says that they count processes."""
    env = facts.env
    if POD not in env or "PET_NNODES" in env or "LOCAL_RANK" in env:
        return None
    index, count = number(env, "RANK"), number(env, "WORLD_SIZE")
    address, port = master(env)
    meant = MASTER_POD.fullmatch(address) or MASTER_POD.fullmatch(facts.hostname)
    if index is None or count is None or count < 2 or not meant:
        return None
    return index, count, address, port, "RANK, WORLD_SIZE"
