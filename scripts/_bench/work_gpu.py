"""Up to the first NCCL all-reduce on a GPU, as each system's own examples do it."""

import torch
import torch.distributed as dist
from measured import Meeting, serve, system, timed
from ports import free_port


def join(rank: int, count: int, port: int) -> None:
    if system() == "xmp":
        import xmp

        xmp.init_process_group()
        return
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(
        "nccl", init_method=address, rank=rank, world_size=count, device_id=device
    )


def fn(rank: int, meeting: Meeting, port: int) -> None:
    join(rank, meeting.count, port)
    value = torch.ones(1, device="cuda")
    dist.all_reduce(value)
    assert value.item() == meeting.count  # waits for the device
    meeting.mark(rank)
    dist.destroy_process_group()


def measure(meeting: Meeting) -> dict[str, float]:
    return timed(fn, (free_port(),), runtime="cuda", timeout=300)(meeting)


if __name__ == "__main__":
    serve(measure)
