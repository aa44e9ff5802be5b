"""Four replicas on two hosts of ssh: seconds from the call to the last one's first all-reduce.

``work_ssh.py SYSTEM CONFIG LAUNCHES HOST...``: prints the seconds of each launch as JSON. The hosts
share this machine's monotonic clock.
"""

import json
import sys
import time

import torch
import torch.distributed as dist

SYSTEM, CONFIG, LAUNCHES, *HOSTS = sys.argv[1:]
EACH = 2


def reduce() -> int:
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size() == EACH * len(HOSTS)
    return time.monotonic_ns()


def replica(rank: int) -> int:
    return reduce()


def by_xmp() -> list[int]:
    import xmp

    return list(
        xmp.launch(
            replica, hosts=HOSTS, engine="ssh", nprocs=EACH, runtime="cpu", backend="gloo",
            ssh_options=("-F", CONFIG),
        )
    )  # fmt: skip


def by_torchrunx() -> list[int]:
    import torchrunx

    launcher = torchrunx.Launcher(
        hostnames=HOSTS, workers_per_host=EACH, ssh_config_file=CONFIG, backend="gloo"
    )
    found = launcher.run(reduce).results
    return [each for host in HOSTS for each in found[host]]


if __name__ == "__main__":
    launch = {"xmp": by_xmp, "torchrunx": by_torchrunx}[SYSTEM]
    taken = []
    for _ in range(int(LAUNCHES)):
        called = time.monotonic_ns()
        taken.append((max(launch()) - called) / 1e9)
    print(json.dumps(taken))
