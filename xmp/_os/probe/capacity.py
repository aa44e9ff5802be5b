"""Finds how many replicas this host's limits allow at most: a larger launch fails half way.

These are upper bounds: what the user's function takes for itself comes on top.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from xmp._os import proc

from . import limits, read

__all__ = ["most_replicas", "too_many"]

_SURELY = 128
"""Up to this number of replicas nothing is checked: reading the limits takes 0.3 ms."""
_DESCRIPTORS = 4  # of one replica in its supervisor: connection, lifeline, standard error, pidfd
_OTHER_DESCRIPTORS = 64
_MEMORY = 1 << 20  # bytes: a forked replica that does nothing has written to as many pages


def too_many(replicas: int, root: Path = Path("/")) -> str:
    """Return why this host cannot carry this many replicas; "" where it may."""
    if replicas <= _SURELY:
        return ""
    most, limit = most_replicas(root)
    if replicas <= most:
        return ""
    return f"this host can carry at most {most} replicas: {limit}. Give fewer, or raise that limit"


def most_replicas(root: Path) -> tuple[int, str]:
    """Return the number of replicas that the tightest limit allows, and that limit in words."""
    return min(_bounds(root), default=(1 << 22, "the kernel's largest pid is 4194304"))


def _bounds(root: Path) -> Iterator[tuple[int, str]]:
    for name in ("pid_max", "threads-max"):
        value = read.text(root / "proc/sys/kernel" / name)
        if value.isdigit():
            yield int(value), f"it has {value} processes and threads at most (kernel.{name})"
    for folder, _ in limits.cgroups(root, "pids"):
        most, now = (read.text(folder / f"pids.{name}") for name in ("max", "current"))
        if most.isdigit() and now.isdigit():
            text = f"its control group has {most} processes and threads at most ({folder}/pids.max)"
            yield max(0, int(most) - int(now)), f"{text}, and {now} now"
    processes, _ = proc.limit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and os.geteuid():  # root has no such limit
        yield processes, f"a user has {processes} processes at most (ulimit -u)"
    _, files = proc.limit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        most_files = max(0, files - _OTHER_DESCRIPTORS) // _DESCRIPTORS
        text = f"their supervisor has {files} open files at most (ulimit -Hn)"
        yield most_files, f"{text} and needs {_DESCRIPTORS} for each"
    free = limits.memory_free(root)
    if free is not None:
        text = f"{free[0] >> 20} MiB of memory are free ({free[1]}), and each needs 1 MiB or more"
        yield free[0] // _MEMORY, text
