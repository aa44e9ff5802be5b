"""TPU hosts: the webhook's list of workers on GKE, and the metadata server's on Compute Engine.

Read for TPU runtimes only; JobSet's variables describe several slices. The user may set the same
variables by hand: those of this host count more than the metadata of the whole slice.
"""

from __future__ import annotations

import functools

from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts

from ._base import Cluster, number, tpu_environment
from ._host_texts import host_list, split_port

__all__ = ["find_gce", "find_gke"]

NAMES = "TPU_WORKER_HOSTNAMES"  # "job-0-0.svc,job-0-1.svc"
WORKER = "TPU_WORKER_ID"
SLICES = "MEGASCALE_NUM_SLICES"
SLICE = "MEGASCALE_SLICE_ID"
COORDINATOR = "MEGASCALE_COORDINATOR_ADDRESS"
AGENT = "agent-worker-number"
ENDPOINTS = "worker-network-endpoints"  # "name:uid:10.0.0.2,…", or plain names in the new format


def find_gke(facts: HostFacts) -> Cluster | None:
    """Return the workers of this slice, or of all slices; None where no list of hosts is given."""
    names = host_list(facts.env.get(NAMES, ""))
    if not names:
        return None
    if len(names) == 1:
        return _join_slices(facts, f"{NAMES}={names[0]}", 0, (facts.address,))
    index = number(facts.env, WORKER)
    if index is None or index >= len(names):
        raise PlanError(
            f"{NAMES} has {len(names)} hosts, but {WORKER}={facts.env.get(WORKER)!r}. Set it to "
            f"this host's position in the list, 0 to {len(names) - 1}.",
            code="XMP-P11",
        )
    return _join_slices(facts, f"{NAMES}, {WORKER}", index, _addresses(names))


@functools.lru_cache(maxsize=64)
def _addresses(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_address, names))


def _address(name: str) -> str:
    """Return ``name`` itself, or the last part of ``name:port:ip``, libtpu's other form."""
    first, port, *rest = f"{name}::".split(":")
    if first and port.isdigit() and rest[0]:
        return rest[0]
    return split_port(name)[0]


def find_gce(facts: HostFacts) -> Cluster | None:
    """Return the workers that the metadata server lists; None without metadata."""
    text = facts.metadata.get(ENDPOINTS, "")
    if not text:
        return None
    addresses = tuple(_of_endpoint(entry.strip()) for entry in text.split(","))
    if len(addresses) == 1:
        return _join_slices(facts, f"metadata ({ENDPOINTS})", 0, (facts.address,))
    worker = facts.metadata.get(AGENT, "")
    if not is_number(worker) or int(worker) >= len(addresses):
        raise PlanError(
            f"the metadata server lists {len(addresses)} workers, but {AGENT}={worker!r}. "
            "Set TPU_WORKER_HOSTNAMES and TPU_WORKER_ID yourself.",
            code="XMP-P11",
        )
    return _join_slices(facts, f"metadata ({AGENT}, {ENDPOINTS})", int(worker), addresses)


def _of_endpoint(entry: str) -> str:
    name, _, rest = entry.partition(":")
    # The third field may be an IPv6 address: it keeps its colons.
    return rest.partition(":")[2] or name if rest else name


def _join_slices(facts: HostFacts, name: str, worker: int, addresses: tuple[str, ...]) -> Cluster:
    """Return the hosts of all slices, where the MEGASCALE variables describe several."""
    env = tpu_environment(facts)
    count, index = number(env, SLICES) or 1, number(env, SLICE) or 0
    if count < 2 or COORDINATOR not in env:
        single = len(addresses) == 1
        return Cluster(name, worker, addresses, "127.0.0.1" if single else addresses[0])
    if index >= count:
        raise PlanError(
            f"{SLICE}={index} does not fit {SLICES}={count}. Allowed: 0 to {count - 1}.",
            code="XMP-P11",
        )
    size = len(addresses)
    hosts = [""] * (size * count)
    hosts[index * size : (index + 1) * size] = addresses
    coordinator = split_port(env[COORDINATOR])[0]
    hosts[0] = hosts[0] or coordinator
    position = index * size + worker
    return Cluster(f"{name}, {SLICE} of {count}", position, tuple(hosts), coordinator)
