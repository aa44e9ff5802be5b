"""What /proc says of processes: memory, processor time, descendants."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """``root`` and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of ``stat`` from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that these processes have used so far."""
    return sum(int(f[11]) + int(f[12]) for f in map(_stat, pids) if f) / TICKS


def memory(pids: Iterable[int]) -> dict[str, int]:
    """Bytes that these processes hold: ``private`` (dirty, of one process alone) and ``pss``."""
    total = {"Private_Dirty:": 0, "Pss:": 0}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for name, value in (line.split()[:2] for line in lines[1:]):
            if name in total:
                total[name] += 1024 * int(value)
    return {"private": total["Private_Dirty:"], "pss": total["Pss:"]}


def reset_peak(pid: int) -> int:
    """Let the peak of resident memory start from now; returns the bytes resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status(pid, "VmRSS:")


def peak(pid: int) -> int:
    """Return the most bytes that were resident since ``reset_peak``."""
    return _status(pid, "VmHWM:")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def wait_until_quiet(root: int, quiet: float = 0.6, most: float = 30.0, beats: float = 0.0) -> None:
    """Wait until the whole tree has used no processor time for a while: trial imports are over.

    ``beats``: the part of a processor that its daemons use all the time.
    """
    end = time.monotonic() + most
    since, used = time.monotonic(), -1.0
    while time.monotonic() < end and time.monotonic() - since < quiet:
        now = cpu_seconds(tree(root))
        if now - used > beats * quiet or now < used:
            since, used = time.monotonic(), now
        time.sleep(0.05)
