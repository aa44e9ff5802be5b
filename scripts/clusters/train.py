"""What the files of this folder start, once on each host: a data-parallel training in small.

xmp starts one replica for each device of the host, and finds the other hosts in the variables of
the scheduler: docs/guide/placed-hosts.md.

Rank 0, which is on host 0, reads and writes the checkpoint; the others receive it. Where the next
job may have another machine as host 0, CHECKPOINT must be in a folder that the hosts share, in
Kubernetes on a volume.
"""

import json
import os
from pathlib import Path

import xmp

CHECKPOINT = Path(os.environ.get("CHECKPOINT", "digits.json"))
STEPS = 100


def load() -> dict[str, float]:
    if CHECKPOINT.exists():
        found: dict[str, float] = json.loads(CHECKPOINT.read_text())
        return found
    return {"step": 0, "weight": 0.0}


def save(state: dict[str, float]) -> None:
    new = CHECKPOINT.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.replace(CHECKPOINT)  # at no time is there half a checkpoint


def train(rank: int) -> dict[str, float]:
    state = xmp.broadcast(load() if rank == 0 else None)
    while state["step"] < STEPS:
        gradient = state["weight"] - (rank + 1)  # of this replica's share of the batch
        state["weight"] -= 0.1 * float(xmp.all_reduce(gradient)) / xmp.world_size()
        state["step"] += 1
        ending = xmp.preempted()  # true at the same step on all hosts
        if rank == 0 and (ending or state["step"] % 20 == 0):
            save(state)
        if ending:
            break
    return state


if __name__ == "__main__":
    results = list(xmp.spawn(train))  # those of this host
    step, weight = results[0]["step"], results[0]["weight"]
    print(f"{len(results)} replicas here, weight {weight:.2f} after step {step}", flush=True)
