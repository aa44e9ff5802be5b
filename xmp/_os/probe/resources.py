"""What this process may use: cores (affinity and quota), NUMA nodes, memory, how many replicas.

Also the kernel's counters of processes that it killed when memory ran out (OOM kills).
"""

from __future__ import annotations

import functools
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xmp._os import proc

__all__ = [
    "Bound", "Counted", "affinity", "bound", "cgroups", "count", "cpu_quota", "installed", "memory",
    "memory_free", "most_replicas", "numa", "too_many",
]  # fmt: skip


def affinity() -> tuple[int, ...]:
    """Return the CPUs that this process may run on."""
    return proc.affinity() or tuple(range(os.cpu_count() or 1))


def cpu_quota(root: Path) -> float | None:
    """Return the tightest CPU quota of its control groups, in CPUs; None without a limit."""
    quotas = []
    for folder, unified in cgroups(root, "cpu"):
        if unified:
            quota, _, period = proc.text(folder / "cpu.max").partition(" ")
        else:
            quota = proc.text(folder / "cpu.cfs_quota_us")
            period = proc.text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory(root: Path) -> int | None:
    """Return the bytes that this process may use: the machine's, or its control groups' limit."""
    machine = installed(root)
    limits = [] if machine is None else [machine]
    for folder, unified in cgroups(root, "memory"):
        limit = proc.text(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        if limit.isdigit():
            limits.append(int(limit))
    return min(limits, default=None)


@functools.lru_cache(maxsize=8)
def installed(root: Path) -> int | None:
    """Return the bytes of memory that the machine has; None where unknown."""
    found = re.search(r"MemTotal:\s+(\d+) kB", proc.text(root / "proc/meminfo"))
    return int(found[1]) * 1024 if found else None


def memory_free(root: Path) -> tuple[int, str] | None:
    """Return the bytes that this process may still take, and their limit; None where unknown."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", proc.text(root / "proc/meminfo"))
    rooms = [(int(found[1]) * 1024, "the machine")] if found else []
    for folder, unified in cgroups(root, "memory"):
        names = ("max", "current") if unified else ("limit_in_bytes", "usage_in_bytes")
        limit, used = (proc.text(folder / f"memory.{name}") for name in names)
        if limit.isdigit() and used.isdigit():
            free = int(limit) - int(used) + _given_back(folder, unified)
            rooms.append((max(free, 0), "the memory control group"))
    return min(rooms, default=None)


def _given_back(folder: Path, unified: bool) -> int:
    """Return the bytes of cached file pages, which the kernel drops before it kills.

    Files in /dev/shm are not among them.
    """
    name = "inactive_file" if unified else "total_inactive_file"
    found = re.search(rf"^{name} (\d+)$", proc.text(folder / "memory.stat"), re.MULTILINE)
    return int(found[1]) if found else 0


def cgroups(root: Path, controller: str) -> tuple[tuple[Path, bool], ...]:
    """Return the folders of this process's control groups, leaf to root, and whether each is v2."""
    return _folders(root, proc.text(root / "proc/self/cgroup"), controller)


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
    nodes = sorted(
        Path(root, "sys/devices/system/node").glob("node[0-9]*"),
        key=lambda node: int(re.sub(r"\D", "", node.name)),  # node10 comes after node9
    )
    return tuple(_cpu_list(proc.text(node / "cpulist")) for node in nodes)


def _cpu_list(text: str) -> tuple[int, ...]:
    """Return ``"0-3,8"`` as numbers."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


# --- how many replicas ---------------------------------------------------------------------------


# These are upper bounds: what the user's function takes for itself comes on top.

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
        value = proc.text(root / "proc/sys/kernel" / name)
        if value.isdigit():
            yield int(value), f"it has {value} processes and threads at most (kernel.{name})"
    for folder, _ in cgroups(root, "pids"):
        most, now = (proc.text(folder / f"pids.{name}") for name in ("max", "current"))
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
    free = memory_free(root)
    if free is not None:
        text = f"{free[0] >> 20} MiB of memory are free ({free[1]}), and each needs 1 MiB or more"
        yield free[0] // _MEMORY, text


# --- OOM kills -----------------------------------------------------------------------------------


# A control group counts the kills among its own processes, whichever limit was reached: its own, a
# parent group's, or the machine's memory. Cgroup v2 and v1 name the files differently.


@dataclass(frozen=True)
class Counted:
    """The counters at one time."""

    kills: int
    peak: int | None = None
    """The most bytes that the group has used since it was made, where the kernel counts that."""
    everywhere: bool = False
    """Whether these are the whole machine's kills, since no group of this process can be read."""


@dataclass(frozen=True)
class Bound:
    """The limit of this process's memory in bytes, and whether a control group sets it."""

    size: int
    of_group: bool


def count(root: Path = Path("/")) -> Counted | None:
    """Return the counters as they are now; None where they cannot be read."""
    for folder, unified in cgroups(root, "memory"):
        names = ("events", "peak") if unified else ("oom_control", "max_usage_in_bytes")
        kills = _kills(folder / f"memory.{names[0]}")
        if kills is not None:
            peak = proc.text(folder / f"memory.{names[1]}")
            return Counted(kills, int(peak) if peak.isdigit() else None)
    kills = _kills(root / "proc/vmstat")
    return None if kills is None else Counted(kills, everywhere=True)


def _kills(path: Path) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", proc.text(path), re.MULTILINE)
    return int(found[1]) if found else None


def bound(root: Path = Path("/")) -> Bound | None:
    """Return the control groups' tightest limit, or the machine's memory; None where unknown."""
    size, machine = memory(root), installed(root)
    return None if size is None else Bound(size, size != machine)
