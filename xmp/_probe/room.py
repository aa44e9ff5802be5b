"""Will it fit: what a launch takes of memory and of /dev/shm, against what is free here.

Arguments and results travel in memory files. No size of /dev/shm bounds these, but a control group
counts them as memory, as it does with the files in /dev/shm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import limits
from .finding import Finding

__all__ = ["Load", "memory", "shared", "shared_memory"]

MIB, GIB = 1 << 20, 1 << 30
LEAST = GIB
"""A fresh interpreter with torch and a device plugin is half of it, before there is a model."""


@dataclass(frozen=True)
class Load:
    """What the user says that a launch will take, in bytes; 0 is unknown."""

    each: int = 0
    """What every replica takes for itself: its model, gradients, batches."""
    arguments: int = 0
    """What all of them are handed."""

    def total(self, replicas: int) -> int:
        """All of it: the arguments are there twice, as the launcher's own and packed once."""
        return replicas * self.each + 2 * self.arguments


def memory(root: Path, installed: int | None, replicas: int, load: Load) -> Iterator[Finding]:
    """Whether ``replicas`` fit into what is free; ``installed`` stands in where nobody says."""
    free, bound = limits.memory_free(root) or (installed, "")
    if free is None:
        return
    what = f"{_size(free)} of memory free" + (f" (of {bound})" if bound else "")
    if load.total(replicas):
        yield _fits(free, what, replicas, load)
        return
    each = free / replicas
    text = f"{what}, {_size(each)} for each replica"
    advice = "fewer replicas, or wrap the model in MpModelWrapper: its weights are shared"
    yield Finding("warning", text, advice) if each < LEAST else Finding("note", text)


def _fits(free: int, what: str, replicas: int, load: Load) -> Finding:
    handed = f" and twice {_size(load.arguments)} of arguments" if load.arguments else ""
    wanted = f"{replicas} replicas with {_size(load.each)} each{handed}"
    if load.total(replicas) <= free:
        return Finding("note", f"{wanted} fit: {what}")
    text = f"{wanted} take {_size(load.total(replicas))}, but there is {what}"
    most = max(free - load.total(0), 0) // load.each if load.each else 0
    advice = f"{most} would fit: say -n, " if most else ""
    return Finding("problem", text, advice + "wrap the model in MpModelWrapper, or raise the limit")


def shared_memory(root: Path) -> tuple[int, int] | None:
    """Size of /dev/shm and what is free there, in bytes; None without one."""
    try:
        state = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def shared(found: tuple[int, int] | None, load: Load) -> Iterator[Finding]:
    """Containers get 64 MiB unless they ask: tensors in arguments and data loaders live there."""
    if found is None:
        yield Finding("warning", "there is no /dev/shm", "mount it: tensors are shared there")
        return
    size, free = found
    larger = "docker run --shm-size=8g, or an emptyDir with medium: Memory"
    if size < GIB:
        yield Finding("warning", f"/dev/shm has only {_size(size)}", larger)
    if free < min(size // 10, GIB):
        text = f"/dev/shm is nearly full: {_size(free)} of {_size(size)} free"
        yield Finding("warning", text, "remove what ended programs left (ls -l /dev/shm)")
    if load.arguments > free:
        text = f"CPU tensors of {_size(load.arguments)} as arguments: /dev/shm has {_size(free)}"
        yield Finding("warning", f"{text} free", f"{larger}; or numpy arrays, which need none")


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{int(count) // MIB} MiB"
