"""Real replicas for the tests of the frameworks."""

from __future__ import annotations

import threading
from typing import Any

import xmp

__all__ = ["LOCK", "OPS", "ddp_replicas", "in_turn", "replicas", "together"]

LOCK = threading.Lock()
"""For replicas that are threads of one process."""
OPS = ["sum", "mean", "min", "max", "prod"]


def replicas(fn: Any, *args: Any, runtime: str, nprocs: int, **options: Any) -> list[Any]:
    """What ``fn`` returns in every replica; fails when they are not done in 90 seconds."""
    with xmp.spawn(fn, args, nprocs=nprocs, runtime=runtime, join=False, **options) as context:
        assert context.join(timeout=90), "not done within 90 s"
        return list(context.results())


def ddp_replicas(fn: Any, *args: Any, nprocs: int = 2, **options: Any) -> list[Any]:
    """Run ``replicas`` on the CPU, where the template has imported what torch's DDP needs.

    Its constructor imports torch._dynamo: 1.8 s of processor time in each replica.
    """
    xmp.preload("torch._dynamo")
    return replicas(fn, *args, runtime="cpu", nprocs=nprocs, **options)


def in_turn(rank: int, functions: tuple[Any, ...]) -> dict[str, Any]:
    """What each function returns in this replica."""
    return {fn.__name__: fn(rank) for fn in functions}


def together(launch: Any, *functions: Any, **options: Any) -> dict[str, list[Any]]:
    """What each function returns in every replica; one launch calls all of them in turn.

    To start replicas that connect is most of what a launch costs.
    """
    found = launch(in_turn, functions, **options)
    return {fn.__name__: [each[fn.__name__] for each in found] for fn in functions}
