"""Reads what this process may use: cores (affinity and quota), memory, NUMA nodes."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from xmp._os import proc

from . import read

__all__ = ["affinity", "cgroups", "cpu_quota", "installed", "memory", "memory_free", "numa"]


def affinity() -> tuple[int, ...]:
    """Return the CPUs that this process may run on."""
    return proc.affinity() or tuple(range(os.cpu_count() or 1))


def cpu_quota(root: Path) -> float | None:
    """Return the tightest CPU quota of its control groups, in CPUs; None without a limit."""
    quotas = []
    for folder, unified in cgroups(root, "cpu"):
        if unified:
            quota, _, period = read.text(folder / "cpu.max").partition(" ")
        else:
            quota = read.text(folder / "cpu.cfs_quota_us")
            period = read.text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory(root: Path) -> int | None:
    """Return the bytes that this process may use: the machine's, or its control groups' limit."""
    machine = installed(root)
    limits = [] if machine is None else [machine]
    for folder, unified in cgroups(root, "memory"):
        limit = read.text(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        if limit.isdigit():
            limits.append(int(limit))
    return min(limits, default=None)


@functools.lru_cache(maxsize=8)
def installed(root: Path) -> int | None:
    """Return the bytes of memory that the machine has; None where unknown."""
    found = re.search(r"MemTotal:\s+(\d+) kB", read.text(root / "proc/meminfo"))
    return int(found[1]) * 1024 if found else None


def memory_free(root: Path) -> tuple[int, str] | None:
    """Return the bytes that this process may still take, and their limit; None where unknown."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", read.text(root / "proc/meminfo"))
    rooms = [(int(found[1]) * 1024, "the machine")] if found else []
    for folder, unified in cgroups(root, "memory"):
        names = ("max", "current") if unified else ("limit_in_bytes", "usage_in_bytes")
        limit, used = (read.text(folder / f"memory.{name}") for name in names)
        if limit.isdigit() and used.isdigit():
            free = int(limit) - int(used) + _given_back(folder, unified)
            rooms.append((max(free, 0), "the memory control group"))
    return min(rooms, default=None)


def _given_back(folder: Path, unified: bool) -> int:
    """Return the bytes of cached file pages, which the kernel drops before it kills.

    Files in /dev/shm are not among them.
    """
    name = "inactive_file" if unified else "total_inactive_file"
    found = re.search(rf"^{name} (\d+)$", read.text(folder / "memory.stat"), re.MULTILINE)
    return int(found[1]) if found else 0


def cgroups(root: Path, controller: str) -> tuple[tuple[Path, bool], ...]:
    """Return the folders of this process's control groups, leaf to root, and whether each is v2."""
    return _folders(root, read.text(root / "proc/self/cgroup"), controller)


@functools.lru_cache(maxsize=8)
def _folders(root: Path, groups: str, controller: str) -> tuple[tuple[Path, bool], ...]:
    # A launch calls this three times, and pathlib is slow: 0.2 of the 4 ms before the first fork.
    return tuple(_walk(root, groups, controller))


def _walk(root: Path, groups: str, controller: str) -> Iterator[tuple[Path, bool]]:
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / names if names else root / "sys/fs/cgroup"
        # In a container this may be the host's path, whose ancestors lead to the visible root.
        folder = mount / path.lstrip("/")
        yield folder, not names
        while folder != mount and folder != folder.parent:
            folder = folder.parent
            yield folder, not names


@functools.lru_cache(maxsize=8)
def numa(root: str) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of each NUMA node, in the order of the nodes."""
    nodes = sorted(Path(root, "sys/devices/system/node").glob("node[0-9]*"), key=read.number)
    return tuple(_cpu_list(read.text(node / "cpulist")) for node in nodes)


def _cpu_list(text: str) -> tuple[int, ...]:
    """Return ``"0-3,8"`` as numbers."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)
