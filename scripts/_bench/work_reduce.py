"""Up to the first gloo all-reduce: every replica has the sum."""

import os
import time

import torch
import torch.distributed as dist
from measured import Meeting, serve, system, timed
from ports import free_port


def join(rank: int, count: int, port: int) -> None:
    """As each system's own examples do it."""
    if system().startswith("xmp"):
        import xmp

        xmp.init_process_group()
    elif dist.is_initialized():
        pass  # the launcher did it
    elif "RANK" in os.environ:  # torchrun
        dist.init_process_group("gloo")
    else:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # as xmp's plan says
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=count)


def fn(rank: int, meeting: Meeting, port: int) -> None:
    join(rank, meeting.count, port)
    value = torch.ones(1)
    dist.all_reduce(value)
    meeting.mark(rank, at=time.monotonic_ns())
    assert value.item() == meeting.count
    dist.destroy_process_group()


def measure(meeting: Meeting) -> dict[str, float]:
    return timed(fn, (free_port(),))(meeting)


if __name__ == "__main__":
    serve(measure)
