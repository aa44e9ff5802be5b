"""Findings on the free memory and /dev/shm of this host.

Arguments and results travel in memory files. The size of /dev/shm does not limit these, but a
control group counts them as memory, as it counts files in /dev/shm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from . import limits
from .finding import Finding

__all__ = ["memory", "shared", "shared_memory"]

MIB, GIB = 1 << 20, 1 << 30
LEAST = GIB
"""The least memory per replica without a warning: half of it goes to a fresh interpreter with torch
and a device plugin, without a model."""


def memory(root: Path, installed: int | None, replicas: int) -> Iterator[Finding]:
    """Yield whether ``replicas`` fit into free memory; if unknown, into ``installed`` bytes."""
    free, bound = limits.memory_free(root) or (installed, "")
    if free is None:
        return
    what = f"{_size(free)} of memory free" + (f" (of {bound})" if bound else "")
    each = free / replicas
    text = f"{what}, {_size(each)} for each replica"
    advice = "use fewer replicas, or wrap the model in MpModelWrapper, which shares its weights"
    yield Finding("warning", text, advice) if each < LEAST else Finding("note", text)


def shared_memory(root: Path) -> tuple[int, int] | None:
    """Return the size of /dev/shm and its free part, in bytes; None without /dev/shm."""
    try:
        state = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def shared(found: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield what is too small in /dev/shm: tensors in arguments and data loaders need it.

    In a container it has 64 MiB by default.
    """
    if found is None:
        yield Finding("warning", "this host has no /dev/shm", "mount one: tensors are shared there")
        return
    size, free = found
    larger = "make it larger: docker run --shm-size=8g, or an emptyDir with medium: Memory"
    if size < GIB:
        yield Finding("warning", f"/dev/shm has only {_size(size)}", larger)
    if free < min(size // 10, GIB):
        text = f"/dev/shm is nearly full: {_size(free)} of {_size(size)} free"
        yield Finding("warning", text, "remove files that ended programs left (ls -l /dev/shm)")


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{int(count) // MIB} MiB"
