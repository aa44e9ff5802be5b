"""The time in which the planner makes one host's plan of a job of many."""

from __future__ import annotations

import time

from xmp._plan import planner
from xmp._words.types import HostFacts, Request

SLICE = 64
"""Hosts of one slice, v6e-256; larger jobs have several."""
SHAPES = {2: (1, 2), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8)}
"""Of a slice, in hosts of 2 x 2 chips."""
WORDS = {"torch": "2.13.0+cpu", "torch_xla": "2.9.0", "jax": "0.10.2", "libtpu": "0.0.51"}


def by_hand(hosts: int) -> tuple[Request, HostFacts]:
    """Return request and facts of the last host of a job placed by torch's variables."""
    env = {"NNODES": str(hosts), "NODE_RANK": str(hosts - 1), "MASTER_ADDR": "10.0.0.1"}
    facts = HostFacts(env=env, frameworks={"torch": "2.13.0"}, cpus=tuple(range(8)))
    return Request(nprocs=4, runtime="cpu"), facts


def on_tpus(hosts: int) -> tuple[Request, HostFacts]:
    """Return request and facts of the last worker of a JobSet on GKE: 4 chips of v6e a host."""
    here = min(hosts, SLICE)
    names = ",".join(f"train-{n}.tpu-svc" for n in range(here))
    x, y = SHAPES[here]
    env = {
        "TPU_WORKER_HOSTNAMES": names, "TPU_WORKER_ID": str(here - 1),
        "TPU_TOPOLOGY": f"{2 * x}x{2 * y}",
        "TPU_ACCELERATOR_TYPE": f"v6e-{4 * here}", "TPU_SKIP_MDS_QUERY": "true",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_HOST_BOUNDS": f"{x},{y},1",
    }  # fmt: skip
    if hosts > SLICE:
        env |= {
            "MEGASCALE_NUM_SLICES": str(hosts // SLICE),
            "MEGASCALE_SLICE_ID": str(hosts // SLICE - 1),
            "MEGASCALE_COORDINATOR_ADDRESS": "train-0.tpu-svc",
        }
    tpu = {"generation": "v6e", "chips": 4, "devices": 4, "nodes": "vfio"}
    return Request(runtime="pjrt"), HostFacts(
        env=env, tpu=tpu, frameworks=WORDS, cpus=tuple(range(8))
    )


def pod(hosts: int) -> tuple[Request, HostFacts]:
    """Return the same without slices: an address list of all hosts in every replica."""
    names = ",".join(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(hosts))
    env = {
        "TPU_WORKER_HOSTNAMES": names, "TPU_WORKER_ID": str(hosts - 1),
        "TPU_SKIP_MDS_QUERY": "true", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_HOST_BOUNDS": _bounds(hosts),
    }  # fmt: skip
    tpu = {"generation": "v5p", "chips": 4, "devices": 4, "nodes": "vfio"}
    return Request(runtime="pjrt"), HostFacts(
        env=env, tpu=tpu, frameworks=WORDS, cpus=tuple(range(8))
    )


def _bounds(hosts: int) -> str:
    """Three numbers whose product is the number of hosts, a power of two."""
    power = hosts.bit_length() - 1
    third = power // 3
    return f"{2**third},{2**third},{2 ** (power - 2 * third)}"


KINDS = {"by hand": by_hand, "JobSet": on_tpus, "one slice": pod}


def measured(hosts: int) -> dict[str, float]:
    """Seconds for each kind of job, and the characters of the longest variable of a replica."""
    found = {}
    planner.plan(*by_hand(2))  # the first plan of a process imports
    for name, make in KINDS.items():
        request, facts = make(hosts)
        began = time.perf_counter()
        made = planner.plan(request, facts)
        found[f"plan, {name}"] = time.perf_counter() - began
        assert made.world_size == 4 * hosts
        longest = max(len(value) for r in made.hosts[-1].replicas for _, value in r.set)
        found[f"longest variable, {name}"] = float(longest)
    return found
