"""Rank 3 of 8 fails amid all-reduces, and the others lose their connections at the same time.

A script: ``culprit.py FRAMEWORK HOW COUNT SEED DESCRIPTOR`` launches that often, writes a line
about each, and ends with 1 when another rank was ever called the cause. ``lines`` runs it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import xmp

__all__ = ["CASES", "lines"]

CASES = [
    ("torch", "raise"),
    (
        "torch",
        "leave-and-raise",
    ),  # as in `finally: destroy_process_group()`: the victims know first
    ("torch", "SIGKILL"),
    ("jax", "raise"),
    ("jax", "SIGKILL"),
]
NPROCS, CULPRIT, STEPS = 8, 3, 30
RUNTIMES = {"torch": "cpu", "jax": "jax"}


def fails(rank: int, framework: str, how: str, step: int) -> None:
    """The replicas' function: all-reduces without end, but for one."""
    add = torchs_all_reduce() if framework == "torch" else jaxs_all_reduce
    value: Any = 1.0
    for number in range(STEPS):
        if rank == CULPRIT and number == step:
            fail(how)
        value = add(value)
    while True:  # a rank that returned would hide that the others did not
        signal.pause()


def torchs_all_reduce() -> Any:
    """torch's own, so that what fails is gloo's."""
    import torch

    xmp.init_process_group()
    total = torch.ones(1000)

    def add(_: Any) -> Any:
        torch.distributed.all_reduce(total)
        return total

    return add


def jaxs_all_reduce(value: Any) -> Any:
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(value).sum()


def fail(how: str) -> None:
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "leave-and-raise":
        import torch.distributed

        try:
            raise ValueError("planned")
        finally:
            torch.distributed.destroy_process_group()
    raise ValueError("planned")


def verdict(framework: str, how: str, step: int) -> tuple[bool, str]:
    """Launch once; whether the culprit was named, and what was said."""
    wanted = xmp.ReplicaDied if how == "SIGKILL" else xmp.ReplicaRaised
    try:
        xmp.spawn(
            fails, (framework, how, step), nprocs=NPROCS, runtime=RUNTIMES[framework], timeout=300
        )
    except xmp.ReplicaError as error:
        labels = {failure.rank: failure.label for failure in error.failures}
        causes = [rank for rank, label in labels.items() if label == "cause"]
        good = isinstance(error, wanted) and error.rank == CULPRIT and causes == [CULPRIT]
        counts = {label: list(labels.values()).count(label) for label in labels.values()}
        return good, f"{counts}" if good else f"rank {error.rank}, {labels}:\n{error}"
    except xmp.XmpError as error:
        return False, f"{type(error).__name__}: {error}"
    return False, "it returned"


def main(framework: str, how: str, count: str, seed: str, descriptor: str) -> int:
    chance, misses = random.Random(f"{framework} {how} {seed}"), 0
    xmp.preload("jax" if framework == "jax" else "torch.distributed")
    with open(int(descriptor), "w", buffering=1) as out:
        for number in range(int(count)):
            step, began = chance.randrange(STEPS), time.monotonic()
            good, said = verdict(framework, how, step)
            misses += not good
            line = f"{framework} {how} {number} at step {step}, {time.monotonic() - began:.2f} s"
            print(f"{'ok  ' if good else 'MISS'} {line}: {said}", file=out)
    return 1 if misses else 0


def lines(framework: str, how: str, count: int, seed: int) -> Iterator[str]:
    """Launch that often in a new process: what it says of each, then "" if all is well.

    The replicas' own output, and what gloo and JAX have to say, goes nowhere.
    """
    heard, said = os.pipe()
    arguments = [framework, how, str(count), str(seed), str(said)]
    process = subprocess.Popen(
        [sys.executable, __file__, *arguments], pass_fds=[said],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(said)
    with open(heard) as file:
        yield from map(str.rstrip, file)
    code = process.wait()
    yield f"MISS {framework} {how}: exit code {code}" if code else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
