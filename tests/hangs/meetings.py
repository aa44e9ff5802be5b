"""Where the other ranks wait: each function is a collective of xmp, torch or JAX.

``arrive`` returns at once on all ranks but the one that is elsewhere, where it never returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xmp

__all__ = ["MEETINGS"]

Arrive = Callable[[], None]


def xmp_barrier(arrive: Arrive) -> None:
    arrive()
    xmp.barrier()


def xmp_all_reduce(arrive: Arrive) -> None:
    arrive()
    xmp.all_reduce(1.0)


def xmp_all_gather(arrive: Arrive) -> None:
    arrive()
    xmp.all_gather({"rank": xmp.rank()})


def xmp_broadcast(arrive: Arrive) -> None:
    """Wait for rank 2: the source of a broadcast does not wait for the others."""
    arrive()
    xmp.broadcast("config", src=2)


def xmp_once_per_host(arrive: Arrive) -> None:
    arrive()
    xmp.once_per_host(lambda: 1)


def _torch() -> Any:
    import torch
    import torch.distributed as dist

    xmp.init_process_group("gloo")
    return torch, dist


def torch_barrier(arrive: Arrive) -> None:
    _, dist = _torch()
    arrive()
    dist.barrier()


def torch_all_reduce(arrive: Arrive) -> None:
    torch, dist = _torch()
    arrive()
    dist.all_reduce(torch.ones(4))


def torch_async_all_reduce(arrive: Arrive) -> None:
    torch, dist = _torch()
    arrive()
    dist.all_reduce(torch.ones(4), async_op=True).wait()


def torch_all_gather_object(arrive: Arrive) -> None:
    _, dist = _torch()
    arrive()
    dist.all_gather_object([None] * xmp.world_size(), xmp.rank())


def torch_new_group(arrive: Arrive) -> None:
    _, dist = _torch()
    arrive()
    dist.new_group([0, 1, 2])


def torch_init(arrive: Arrive) -> None:
    import torch.distributed as dist

    arrive()
    dist.init_process_group("gloo")


def torch_backward(arrive: Arrive) -> None:
    """Wait in the all-reduce of a backward pass, where no frame names a collective."""
    torch, _ = _torch()
    model = xmp.data_parallel(torch.nn.Linear(4, 1))
    arrive()
    model(torch.ones(2, 4)).sum().backward()


def jax_process_allgather(arrive: Arrive) -> None:
    from jax.experimental import multihost_utils

    arrive()
    multihost_utils.process_allgather(1.0)


def jax_sync(arrive: Arrive) -> None:
    from jax.experimental import multihost_utils

    arrive()
    multihost_utils.sync_global_devices("step")


MEETINGS: dict[str, tuple[str, Callable[[Arrive], None]]] = {
    each.__name__: ("jax" if each.__name__.startswith("jax") else "cpu", each)
    for each in (
        xmp_barrier, xmp_all_reduce, xmp_all_gather, xmp_broadcast, xmp_once_per_host,
        torch_barrier, torch_all_reduce, torch_async_all_reduce, torch_all_gather_object,
        torch_new_group, torch_init, torch_backward, jax_process_allgather, jax_sync,
    )
}  # fmt: skip
"""The runtime and the function of each, by its name."""
