"""What the files of this folder start, once on each host: a data-parallel training in small.

xmp starts one replica for each device of the host, and finds the other hosts in the variables of
the scheduler: docs/placed-hosts.md.
"""

import xmp


def train(rank: int) -> float:
    batch = float(rank + 1)  # this replica's share of the data
    total = xmp.all_reduce(batch)  # over the replicas of all hosts
    if xmp.preempted():
        print(f"replica {rank}: the host is about to be taken away; saving")
    return float(total)


if __name__ == "__main__":
    results = list(xmp.spawn(train))
    print(f"{len(results)} replicas here, sum over all hosts {results[0]:g}", flush=True)
