"""TPU VMs on Compute Engine: the metadata server lists every worker of the slice."""

from __future__ import annotations

from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster
from .gke_tpu import join_slices

__all__ = ["find"]

WORKER = "agent-worker-number"
ENDPOINTS = "worker-network-endpoints"  # "name:uid:10.0.0.2,…", or plain names in the new format


def find(facts: HostFacts) -> Cluster | None:
    """The workers that the metadata server lists; None without metadata."""
    text = facts.metadata.get(ENDPOINTS, "")
    if not text:
        return None
    addresses = tuple(_address(entry.strip()) for entry in text.split(","))
    if len(addresses) == 1:
        return join_slices(facts, f"metadata ({ENDPOINTS})", 0, (facts.address,))
    worker = facts.metadata.get(WORKER, "")
    if not is_number(worker) or int(worker) >= len(addresses):
        raise PlanError(
            f"the metadata server lists {len(addresses)} workers, but {WORKER}={worker!r}. "
            "Set TPU_WORKER_HOSTNAMES and TPU_WORKER_ID yourself."
        )
    return join_slices(facts, f"metadata ({WORKER}, {ENDPOINTS})", int(worker), addresses)


def _address(entry: str) -> str:
    name, _, rest = entry.partition(":")
    # The third field may be an IPv6 address: it keeps its colons.
    return rest.partition(":")[2] or name if rest else name
