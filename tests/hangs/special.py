"""Hangs that are not a rank elsewhere: calls that differ, ranks that have ended, wrong groups."""

from __future__ import annotations

import os
import queue
import socket
import sys
import tempfile
import threading
import time
from typing import Any

import xmp

__all__ = ["SPECIAL"]


def _torch() -> Any:
    import torch
    import torch.distributed as dist

    xmp.init_process_group("gloo")
    return torch, dist


def operations_differ(rank: int) -> None:
    if rank == 2:
        xmp.all_gather(1)
    else:
        xmp.barrier()


def shapes_differ(rank: int) -> None:
    torch, _ = _torch()
    xmp.all_reduce(torch.ones(5 if rank == 2 else 4))


def types_differ(rank: int) -> None:
    torch, _ = _torch()
    xmp.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 2 else torch.float32))


def structures_differ(rank: int) -> None:
    torch, _ = _torch()
    value = {"loss": torch.ones(2)}
    if rank == 2:
        value["accuracy"] = torch.ones(2)
    xmp.all_reduce(value)


def reductions_differ(rank: int) -> None:
    xmp.all_reduce(1.0, "max" if rank == 2 else "sum")


def sources_differ(rank: int) -> None:
    xmp.broadcast("config", src=1 if rank == 2 else 0)


def torch_operations_differ(rank: int) -> None:
    torch, dist = _torch()
    if rank == 2:
        dist.all_gather_object([None] * xmp.world_size(), 1)
    else:
        dist.barrier()


def torch_branches_differ(rank: int) -> None:
    torch, dist = _torch()
    if rank == 2:
        dist.broadcast(torch.ones(4), src=0)
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(4))


def only_rank_0(rank: int) -> None:
    if rank == 0:
        xmp.barrier()


def only_rank_0_then_all(rank: int) -> None:
    if rank == 0:
        xmp.barrier()
    xmp.all_reduce(1.0)


def all_but_rank_0(rank: int) -> None:
    if rank != 0:
        xmp.barrier()


def a_swallowed_exception(rank: int) -> None:
    for step in range(6):
        try:
            if rank == 1 and step == 3:
                raise ValueError("a broken sample")
            xmp.all_reduce(float(step))
        except ValueError:
            pass


def a_swallowed_exception_then_sleep(rank: int) -> None:
    for step in range(6):
        try:
            if rank == 1 and step == 3:
                raise ValueError("a broken sample")
            xmp.all_reduce(float(step))
        except ValueError:
            time.sleep(1000)


def ends_early(rank: int) -> None:
    for step in range(6):
        if rank == 3 and step == 4:
            return
        xmp.all_gather(step)


def exits_early(rank: int) -> None:
    if rank == 2:
        sys.exit(0)
    xmp.barrier()


def leaves_at_once(rank: int) -> None:
    if rank == 2:
        os._exit(0)
    xmp.once_per_host(lambda: time.sleep(0.1))
    xmp.barrier()


def uneven_batches(rank: int) -> None:
    """Rank 0 has one batch less than the others: the classic of uneven data sets."""
    torch, dist = _torch()
    for _ in range(3 if rank == 0 else 4):
        dist.all_reduce(torch.ones(2))
    if rank == 0:
        dist.barrier()


def wrong_group(rank: int) -> None:
    torch, dist = _torch()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if rank == 2:
        dist.all_reduce(torch.ones(2), group=pairs[1])
    else:
        dist.all_reduce(torch.ones(2))


def wrong_group_of_xmp(rank: int) -> None:
    _, dist = _torch()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if rank == 2:
        xmp.barrier(pairs[1])
    else:
        xmp.barrier()


def backends_that_never_meet(rank: int) -> None:
    import torch.distributed as dist

    if rank == 2:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=2, world_size=4)
    else:
        dist.init_process_group("gloo")


def a_message_that_nobody_sends(rank: int) -> None:
    torch, dist = _torch()
    if rank == 2:
        dist.recv(torch.ones(2), src=0)
    else:
        dist.barrier()


def nothing_tells_them_apart(rank: int) -> None:
    time.sleep(1000)


def all_at_one_lock(rank: int) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def two_are_elsewhere(rank: int) -> None:
    if rank == 1:
        time.sleep(1000)
    if rank == 3:
        threading.Event().wait()
    xmp.barrier()


def all_but_one_are_elsewhere(rank: int) -> None:
    if rank != 3:
        time.sleep(1000)
    xmp.barrier()


def evaluation_on_rank_0(rank: int) -> None:
    if rank == 0:
        evaluate()
    xmp.barrier()


def evaluate() -> None:
    queue.Queue().get()


def a_data_loader(rank: int) -> None:
    torch, dist = _torch()

    class Endless(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            time.sleep(1000 if xmp.rank() == 2 else 0)
            return index

    for _ in torch.utils.data.DataLoader(Endless(), num_workers=1):
        dist.barrier()


def a_checkpoint_at_a_fifo(rank: int) -> None:
    torch, dist = _torch()
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(f"{folder}/checkpoint.pt")
            torch.save({"step": 1}, f"{folder}/checkpoint.pt")
    dist.barrier()


def in_a_subgroup(rank: int) -> None:
    """Ranks 0 and 1 work on; in the group of the others, one does not come."""
    torch, dist = _torch()
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    if rank == 3:
        time.sleep(1000)
    for _ in range(3):
        xmp.barrier(group)


def in_steps(rank: int) -> None:
    for step in range(200):
        if rank == 1 and step == 150:
            time.sleep(1000)
        xmp.all_reduce(1.0)


def jax_inside_a_jitted_step(rank: int) -> None:
    import jax
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(jax.devices(), "x")
    part = multihost_utils.host_local_array_to_global_array(
        jax.numpy.ones((1, 4)), mesh, PartitionSpec("x")
    )
    if rank == 2:
        time.sleep(1000)
    jax.jit(lambda x: x.sum())(part).block_until_ready()


def jax_makes_its_backend(rank: int) -> None:
    import jax

    if rank == 2:
        time.sleep(1000)
    jax.devices()


def jax_compiles_on_one_rank(rank: int) -> None:
    import jax

    jax.devices()  # a backend of several processes is made by all of them together
    if rank == 2:

        def unrolled(x: Any) -> Any:
            for _ in range(20000):
                x = jax.numpy.sin(x) @ x
            return x

        jax.jit(unrolled)(jax.numpy.ones((2, 2)))
    xmp.barrier()


def jax_operations_differ(rank: int) -> None:
    if rank == 2:
        xmp.all_gather(1)
    else:
        xmp.barrier()


def at_a_second_barrier(rank: int) -> None:
    """Rank 2 has come to the first barrier and not to the second one of the same line."""
    for step in range(2):
        if rank == 2 and step == 1:
            time.sleep(1000)
        xmp.barrier()


SPECIAL = {
    each.__name__: each
    for each in (
        operations_differ, shapes_differ, types_differ, structures_differ, reductions_differ,
        sources_differ, torch_operations_differ, torch_branches_differ, only_rank_0,
        only_rank_0_then_all, all_but_rank_0, a_swallowed_exception,
        a_swallowed_exception_then_sleep, ends_early, exits_early, leaves_at_once, uneven_batches,
        wrong_group, wrong_group_of_xmp, backends_that_never_meet, a_message_that_nobody_sends,
        nothing_tells_them_apart, all_at_one_lock, two_are_elsewhere, all_but_one_are_elsewhere,
        evaluation_on_rank_0, a_data_loader, a_checkpoint_at_a_fifo, in_a_subgroup, in_steps,
        jax_inside_a_jitted_step, jax_makes_its_backend, jax_compiles_on_one_rank,
        jax_operations_differ, at_a_second_barrier,
    )
}  # fmt: skip
