"""The ways to run a function in several processes: ``run(system, fn, args, count)``.

Each imports what it needs when it is first used: a measured script holds its own system only.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any

Function = Callable[..., Any]


def run(system: str, fn: Function, args: Sequence[Any], count: int, **options: Any) -> Any:
    """Run ``fn(rank, *args)`` in ``count`` processes and wait; ``options`` are for xmp alone."""
    if system.startswith("xmp"):
        return _xmp(system, fn, args, count, options)
    if system in _OTHERS:
        return _OTHERS[system](fn, args, count)
    from peer_systems import PEERS

    return PEERS[system](fn, args, count)


def _xmp(system: str, fn: Function, args: Sequence[Any], count: int, options: Any) -> Any:
    import xmp

    method = system.partition("-")[2]
    if method in ("fork", "spawn"):
        options["start_method"] = method
    options.setdefault("runtime", "cpu")
    return xmp.spawn(fn, args=tuple(args), nprocs=count, **options)


def _floor(fn: Function, args: Sequence[Any], count: int) -> None:
    """Fork what has imported everything, and wait for it: the least that processes cost."""
    pids = fork_all(fn, args, count)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    if any(statuses):
        raise RuntimeError(f"forks ended with {statuses}")


def fork_all(fn: Function, args: Sequence[Any], count: int) -> list[int]:
    pids = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            _be_child(fn, rank, args)
        pids.append(pid)
    return pids


def _be_child(fn: Function, rank: int, args: Sequence[Any]) -> None:
    try:
        fn(rank, *args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _torch(fn: Function, args: Sequence[Any], count: int) -> None:
    import torch.multiprocessing

    torch.multiprocessing.spawn(fn, args=tuple(args), nprocs=count)


def _multiprocessing(fn: Function, args: Sequence[Any], count: int) -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=fn, args=(rank, *args)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"exit codes {[process.exitcode for process in processes]}")


_pool: Any = None


def _shared_pool(fn: Function, args: Sequence[Any], count: int) -> list[Any]:
    """Call by a ``multiprocessing`` pool that stays: its processes exist when the call comes."""
    global _pool
    import multiprocessing

    if _pool is None:
        _pool = multiprocessing.get_context("fork").Pool(count)
    return _pool.starmap(fn, [(rank, *args) for rank in range(count)], chunksize=1)


def _here(fn: Function, args: Sequence[Any], count: int) -> None:
    """No spawner: one replica in this process."""
    fn(0, *args)


_OTHERS: dict[str, Callable[[Function, Sequence[Any], int], Any]] = {
    "floor": _floor,
    "torch": _torch,
    "multiprocessing": _multiprocessing,
    "pool": _shared_pool,
    "single": _here,
}
