"""What this process may use: cores by affinity and quota, memory, NUMA nodes."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from . import read

__all__ = ["affinity", "cpu_quota", "memory", "numa"]


def affinity() -> tuple[int, ...]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time per period, the tightest limit up the tree; None without a limit."""
    quotas = []
    for folder, unified in _cgroups(root, "cpu"):
        if unified:
            quota, _, period = read.text(folder / "cpu.max").partition(" ")
        else:
            quota = read.text(folder / "cpu.cfs_quota_us")
            period = read.text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory(root: Path) -> int | None:
    """Bytes this process may use: the machine's memory or the tightest limit up the tree."""
    found = re.search(r"MemTotal:\s+(\d+) kB", read.text(root / "proc/meminfo"))
    limits = [int(found[1]) * 1024] if found else []
    for folder, unified in _cgroups(root, "memory"):
        limit = read.text(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        if limit.isdigit():
            limits.append(int(limit))
    return min(limits, default=None)


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's control groups from leaf to root, and whether they are v2."""
    for line in read.text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / names if names else root / "sys/fs/cgroup"
        # Inside a container the path may be the host's: its ancestors reach the visible root.
        folder = mount / path.lstrip("/")
        yield folder, not names
        while folder != mount and folder != folder.parent:
            folder = folder.parent
            yield folder, not names


@functools.lru_cache(maxsize=8)
def numa(root: str) -> tuple[tuple[int, ...], ...]:
    """The CPUs of each NUMA node, in the order of the nodes."""
    nodes = sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*"), key=read.number)
    return tuple(_cpu_list(read.text(node / "cpulist")) for node in nodes)


def _cpu_list(text: str) -> tuple[int, ...]:
    """``"0-3,8"`` as numbers."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)
