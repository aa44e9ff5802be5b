"""Training steps of a small model in data-parallel replicas, nothing configured by the user."""

import systems
import torch
from measured import Meeting, serve, system
from ports import free_port
from torch import nn
from work_reduce import join

STEPS, FIRST = 30, 3
END = 2


def fn(rank: int, meeting: Meeting, port: int) -> None:
    join(rank, meeting.count, port)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(256, 64), torch.randint(10, (256,))
    for step in range(FIRST + STEPS):
        if step == FIRST:
            meeting.mark(rank)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    meeting.mark(rank, END)
    torch.distributed.destroy_process_group()


def measure(meeting: Meeting) -> dict[str, float]:
    systems.run(system(), fn, (meeting, free_port()), meeting.count)
    return {"seconds": (max(meeting.times(END)) - max(meeting.times())) / 1e9 / STEPS}


if __name__ == "__main__":
    serve(measure)
