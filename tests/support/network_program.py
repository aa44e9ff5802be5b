"""A training program that something places on several hosts; what it does is its argument.

``network_program.py JSON``: one line of JSON, the fields of ``Do``. It writes the results, or what
the error says and when it came, into a file ``said-INDEX`` in the folder where it runs.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import xmp
from tests.support.gloo_stranger import MARKER
from tests.support.in_script import never_returns
from tests.support.waiting import until

__all__ = ["Do", "host_index", "mark"]

STEPS = 40


@dataclass(frozen=True)
class Do:
    """What a launch does, the same on all hosts."""

    function: str
    before: str = ""
    """A function that is launched before, by the same program."""
    how: str = ""
    """What happens to the victim: "raise", "exit", "SIGKILL", "abort" or "segfault"; "" waits for a
    hand."""
    victim: int = -1
    """A rank."""
    after_go: bool = False
    """Whether it happens as soon as there is a file ``go``."""
    step: int = 0
    """In ``sums``: after so many all-reduces."""
    runtime: str = "cpu"
    options: dict[str, Any] = field(default_factory=dict)


def mark(name: str, text: str = "") -> None:
    """Make a file that is complete as soon as it exists."""
    with open(f"{name}.{os.uname().nodename}.{os.getpid()}", "w") as file:
        file.write(text)
    os.replace(file.name, name)


def happens(do: Do) -> None:
    """Now it happens to the victim."""
    if do.after_go:
        until(lambda: os.path.exists("go"), 100)
    mark("fault", str(time.monotonic_ns()))
    if do.how == "raise":
        raise ValueError("planned")
    if do.how == "exit":
        os._exit(17)
    if do.how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if do.how == "abort":
        os.abort()
    if do.how == "segfault":
        ctypes.string_at(0)
    until(lambda: os.path.exists("go"), 100)


# --- functions -----------------------------------------------------------------------------------


def sums(rank: int, do: Do) -> list[Any]:
    """All-reduces by gloo; in their middle it happens to the victim."""
    xmp.init_process_group()
    import torch
    import torch.distributed as dist

    total = torch.full((1000,), float(rank))
    mark(f"in-fn-{rank}")
    for step in range(STEPS):
        if rank == do.victim and step == do.step:
            happens(do)
        total = torch.full((1000,), float(rank))
        dist.all_reduce(total)
        assert float(total[-1]) == sum(range(xmp.world_size()))
    return [rank, xmp.host_index(), dist.get_world_size(), float(total[-1])]


def mesh(rank: int, do: Do) -> list[Any]:
    """A sum over a mesh of the devices of all hosts, by JAX."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = Mesh(np.array(jax.devices()), ("data",))
    spread = NamedSharding(devices, PartitionSpec("data"))
    mine = np.array([float(rank)], "float32")
    summed = jax.jit(
        jax.shard_map(
            lambda block: jax.lax.psum(block, "data"),
            mesh=devices,
            in_specs=PartitionSpec("data"),
            out_specs=PartitionSpec(),
        )
    )(jax.make_array_from_process_local_data(spread, mine))
    total = float(np.asarray(summed.addressable_data(0))[0])
    return [rank, xmp.host_index(), jax.process_count(), total]


def waits(rank: int, do: Do) -> None:
    """It happens to the victim when all have come; the others wait for ever."""
    mark(f"in-fn-{rank}")
    if rank == do.victim:
        everyone_has("in-fn")
        happens(do)
    never_returns()


def late(rank: int, do: Do) -> int:
    """It happens to the victim when all others have returned."""
    mark(f"in-fn-{rank}")
    if rank == do.victim:
        everyone_has("out", but=rank)
        happens(do)
    mark(f"out-{rank}")
    return rank


def saves(rank: int, do: Do) -> int:
    """Training that ends when the host is about to be taken away."""
    step = 0
    while not xmp.preempted():
        mark(f"in-fn-{rank}")
        step += 1
        time.sleep(0.01)  # the work of a step
    mark(f"saved-{rank}", str(step))
    return rank


def hears(rank: int, do: Do) -> None:
    """All but rank 0 wait for what rank 0 sends, which never comes."""
    mark(f"in-fn-{rank}")
    if rank == 0:
        never_returns()
    xmp.broadcast(None, 0)


def led(rank: int, do: Do) -> str:
    """Rank 0 forms the group alone, with what leads its connections elsewhere, and sends."""
    if rank == 0:
        mark("arrived")
        xmp.init_process_group()
        mark("joined")
    until(lambda: os.path.exists("go"), 100)
    text: str = xmp.broadcast(MARKER if rank == 0 else None, 0)
    return text


def gathers(rank: int, do: Do) -> list[Any]:
    """Plain values and arrays go through; what becomes of another object."""
    import numpy as np

    plain = {"rank": rank, "a": (1.5, None, b"x"), "n": np.full(5000, rank), "s": np.float32(rank)}
    told = xmp.all_gather(plain)
    assert [each["rank"] for each in told] == [0, 1, 2, 3]
    assert [(type(each["s"]), int(each["n"].sum())) for each in told] == [
        (np.float32, 5000 * each) for each in range(4)
    ]
    try:
        return [type(each).__name__ for each in xmp.all_gather(do)]
    except TypeError as error:
        return [str(error)]


def everyone_has(name: str, but: int = -1) -> None:
    ranks = [rank for rank in range(xmp.world_size()) if rank != but]
    until(lambda: all(os.path.exists(f"{name}-{rank}") for rank in ranks), 60, name)


# --- the launcher --------------------------------------------------------------------------------


def host_index() -> str:
    """What the scheduler calls this host."""
    return os.environ.get("NODE_RANK") or os.environ["SLURM_NODEID"]


def described(error: BaseException) -> dict[str, Any]:
    names = ("rank", "host", "host_index", "exit_code", "signal_name")
    first = next(iter(getattr(error, "failures", ())), None)
    return {
        "type": type(error).__name__,
        "text": str(error),
        "traceback": getattr(first, "traceback", ""),
        **{name: getattr(error, name, None) for name in names},
    }


def main() -> int:
    do = Do(**json.loads(sys.argv[1]))
    said: dict[str, Any] = {}
    try:
        for name in filter(None, (do.before, do.function)):
            said["before"] = said.pop("results", None)
            results = xmp.spawn(globals()[name], (do,), nprocs=2, runtime=do.runtime, **do.options)
            said["results"] = list(results)
    except BaseException as error:
        said["error"] = described(error)
    said["at"] = time.monotonic_ns()
    mark(f"said-{host_index()}", json.dumps(said))
    return 1 if "error" in said else 0


if __name__ == "__main__":
    sys.exit(main())
