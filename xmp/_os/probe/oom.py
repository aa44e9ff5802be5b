"""The kernel's counters of processes that it killed when memory ran out (OOM kills).

A control group counts the kills among its own processes, whichever limit was reached: the group's,
a parent group's, or the machine's memory. Cgroup v2 and v1 name the files differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from . import limits, read

__all__ = ["Bound", "Counted", "bound", "count"]


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
    for folder, unified in limits.cgroups(root, "memory"):
        names = ("events", "peak") if unified else ("oom_control", "max_usage_in_bytes")
        kills = _kills(folder / f"memory.{names[0]}")
        if kills is not None:
            peak = read.text(folder / f"memory.{names[1]}")
            return Counted(kills, int(peak) if peak.isdigit() else None)
    kills = _kills(root / "proc/vmstat")
    return None if kills is None else Counted(kills, everywhere=True)


def _kills(path: Path) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", read.text(path), re.MULTILINE)
    return int(found[1]) if found else None


def bound(root: Path = Path("/")) -> Bound | None:
    """Return the control groups' tightest limit, or the machine's memory; None where unknown."""
    size, machine = limits.memory(root), limits.installed(root)
    return None if size is None else Bound(size, size != machine)
