"""Real replicas for the tests of the frameworks."""

from __future__ import annotations

import threading
from typing import Any

import xmp

__all__ = ["LOCK", "OPS", "ddp_replicas", "replicas"]

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
