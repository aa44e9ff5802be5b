"""What ``work_run`` starts: a torch script that knows torchrun's variables and no launcher."""

import os
import sys

import torch
import torch.distributed as dist
from meeting import Meeting

if __name__ == "__main__":
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    Meeting(sys.argv[1], int(sys.argv[2])).mark(int(os.environ["RANK"]))
    assert value.item() == dist.get_world_size()
    dist.destroy_process_group()
