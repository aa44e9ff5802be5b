"""Launchers that are not part of torch's own spawn; they live in ``.venv-bench``."""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["PEERS"]

Function = Callable[..., Any]
FOLDER = Path(__file__).resolve().parent


def _torchrun(fn: Function, args: Sequence[Any], count: int) -> None:
    """Start a script that calls the function: this system starts scripts, not functions."""
    meeting, *rest = args
    child = FOLDER / "work_torchrun.py"
    module = Path(inspect.getfile(fn)).stem
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={count}", str(child), module]
    subprocess.run([*command, json.dumps([meeting.path, meeting.count, *rest])], check=True)


def _debug_launcher(fn: Function, args: Sequence[Any], count: int) -> None:
    import accelerate

    # torch's FileStore may have deleted the file that accelerate deletes at the end.
    with suppress(FileNotFoundError):
        accelerate.debug_launcher(_with_rank, args=(fn, *args), num_processes=count)


def _with_rank(fn: Function, *args: Any) -> None:
    """For launchers that give their function no rank, but a process group that knows it."""
    import torch.distributed

    fn(torch.distributed.get_rank(), *args)


def _torchrunx(fn: Function, args: Sequence[Any], count: int) -> Any:
    import torchrunx

    os.environ["PYTHONPATH"] = str(FOLDER)  # its agents look up modules there
    launcher = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=count, backend="gloo")
    return launcher.run(_with_rank, fn, *args)


def _loky(fn: Function, args: Sequence[Any], count: int) -> list[Any]:
    """Call by a pool that stays; one process may take several calls, which replicas never do."""
    from loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=count, timeout=600)
    pending = [executor.submit(fn, rank, *args) for rank in range(count)]
    return [future.result() for future in pending]


@functools.cache
def _ray_up(count: int) -> Any:
    import ray

    ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray


def _ray(fn: Function, args: Sequence[Any], count: int) -> list[Any]:
    """Tasks in worker processes that stay; large arguments are put once."""
    ray = _ray_up(count)
    task = ray.remote(fn)
    shared = [ray.put(value) for value in args]
    found: list[Any] = ray.get([task.remote(rank, *shared) for rank in range(count)])
    return found


PEERS: dict[str, Callable[[Function, Sequence[Any], int], Any]] = {
    "torchrun": _torchrun,
    "debug_launcher": _debug_launcher,
    "torchrunx": _torchrunx,
    "loky": _loky,
    "ray": _ray,
}
