"""Leftovers: processes of earlier launches that no process of xmp's will end.

Either the launcher is gone; or it lives, but the process is a descendant neither of it nor of an
``ENGINE`` process, which adopt the orphans of their launches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from xmp import _marks
from xmp._marks import Mark
from xmp._proc import Process, alive

from .holders import Holder, holder
from .launches import ENGINE, ROOT, ancestors, marks_of, processes

__all__ = ["described", "leftovers"]

_SETTLE = 1.0
_STEP = 0.02


def leftovers(root: Path = ROOT, settle: float = _SETTLE) -> list[Process]:
    """The leftovers of this user's launches and all their descendants, oldest first.

    A launch may be ending at this moment: only what is still there after ``settle`` seconds
    counts.
    """
    found = _look(root)
    end = time.monotonic() + settle
    while any(alive(process.pid, root) for process in found) and time.monotonic() < end:
        time.sleep(_STEP)  # they are not our children: the kernel reports no end to us
    known = {(process.pid, process.started) for process in found}
    still = [p for p in _look(root) if (p.pid, p.started) in known] if found else []
    return sorted(still, key=lambda process: (process.started, process.pid))


def described(process: Process, root: Path = ROOT) -> Holder:
    """The same process, as a user would look for it."""
    return holder(root, root / "proc" / str(process.pid), "")


def _look(root: Path) -> list[Process]:
    here, known = _marks.mine(str(root)), processes(root)
    found = set()
    for process in known.values():
        for mark in _carried(process.pid, root):
            # Pids are unique within one boot and one pid namespace only.
            ours = (mark.boot, mark.space) == (here.boot, here.space)
            if ours and _is_left(process, mark, known, root):
                found.add(process.pid)
    below = {p.pid for p in known.values() if not found.isdisjoint(ancestors(p, known))}
    own = known.get(os.getpid())  # the user's shell may itself be below a leftover
    spared = {os.getpid(), *(ancestors(own, known) if own is not None else ())}
    return [known[pid] for pid in (found | below) - spared]


def _is_left(process: Process, mark: Mark, known: Mapping[int, Process], root: Path) -> bool:
    launcher = known.get(mark.pid)
    if launcher is None or launcher.started != mark.started:
        return True
    above = ancestors(process, known)
    if mark.pid in above or any(pid and pid not in known for pid in above):
        return False  # in the second case a parent has ended since we looked
    lineage = (known[pid] for pid in (process.pid, *above) if pid)
    return not any(p.name in ENGINE and mark in marks_of(p.pid, root) for p in lineage)


def _carried(pid: int, root: Path) -> Iterator[Mark]:
    yield from marks_of(pid, root)
    mark = _from_environment(root / f"proc/{pid}")
    # A job that a replica submits (sbatch, at, systemd-run) may get its environment, too. Only
    # children inherit the score.
    if mark is not None and _score(root / f"proc/{pid}") >= mark.score:
        yield mark


def _from_environment(folder: Path) -> Mark | None:
    name = f"{_marks.VARIABLE}=".encode()
    try:
        if folder.stat().st_uid != os.geteuid():
            return None
        entries = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [entry[len(name) :] for entry in entries if entry.startswith(name)]
    return Mark.parse(found[-1].decode(errors="replace")) if found else None


def _score(folder: Path) -> int:
    try:
        return int((folder / "oom_score_adj").read_text())
    except (OSError, ValueError):
        return -1000
