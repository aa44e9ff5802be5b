"""Training steps with ``xmp.data_parallel``, and with torch's own wrapper in the same replicas."""

import time

import systems
import torch
from measured import Meeting, serve, system
from torch import nn

import xmp

STEPS, BLOCKS, FIRST = 20, 10, 5


def trainer(wrap):
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.ReLU(), *[nn.Linear(256, 256), nn.ReLU()] * 3]
    model = wrap(nn.Sequential(*layers, nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(256, 64), torch.randint(10, (256,))

    def steps(count):
        began = time.perf_counter()
        for _ in range(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        return (time.perf_counter() - began) / count

    return steps


def fn(rank: int) -> tuple[float, float]:
    """Return the fastest of several blocks of each; they take turns, for equal disturbances."""
    xmp.init_process_group()
    ours, bare = trainer(xmp.data_parallel), trainer(nn.parallel.DistributedDataParallel)
    for steps in (ours, bare):
        steps(FIRST)
    pairs = [(ours(STEPS), bare(STEPS)) for _ in range(BLOCKS)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def measure(meeting: Meeting) -> dict[str, float]:
    found = systems.run(system(), fn, (), meeting.count)
    return {
        "seconds": max(each[0] for each in found),
        "seconds@DDP": max(each[1] for each in found),
    }


if __name__ == "__main__":
    serve(measure)
