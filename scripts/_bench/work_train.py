"""A whole script, as a user starts it: replicas, one all-reduce, the end."""

import sys

if sys.argv[1] == "xmp-preload":
    import xmp

    xmp.preload("torch")

import systems
import torch
import torch.distributed as dist
from ports import free_port
from work_reduce import join


def fn(rank: int, count: int, port: int) -> None:
    join(rank, count, port)
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == count
    dist.destroy_process_group()


if __name__ == "__main__":
    count = 1 if sys.argv[1] == "single" else int(sys.argv[2])
    systems.run(sys.argv[1], fn, (count, free_port()), count)
