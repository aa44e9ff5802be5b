"""What launches have left behind: processes of ours that nobody is going to end.

The launcher is gone, or it lives and the process is below neither it nor anything of the engine's,
and older than its running launches. Whatever else is there, above all a launch that runs, is none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from xmp import _marks
from xmp._marks import Mark

from .holders import Holder, holder
from .launches import ENGINE, ROOT, SUPERVISOR, Process, alive, line, pages, processes

__all__ = ["described", "leftovers"]

_SETTLE = 1.0
_STEP = 0.02


def leftovers(root: Path = ROOT, settle: float = _SETTLE) -> list[Process]:
    """What is left of launches of this user, and everything below that, oldest first.

    A launch that ends at this moment leaves nothing: only what is still left after ``settle``
    seconds counts.
    """
    found = _look(root)
    end = time.monotonic() + settle
    while any(alive(process.pid, root) for process in found) and time.monotonic() < end:
        time.sleep(_STEP)  # nothing tells when the last of somebody else's processes has ended
    known = {(process.pid, process.started) for process in found}
    still = [p for p in _look(root) if (p.pid, p.started) in known] if found else []
    return sorted(still, key=lambda process: (process.started, process.pid))


def described(process: Process, root: Path = ROOT) -> Holder:
    """The same process as a person would look for it."""
    return holder(root, root / "proc" / str(process.pid), "")


def _look(root: Path) -> list[Process]:
    here, known = _marks.mine(str(root)), processes(root)
    found = set()
    for process in known.values():
        for mark in _carried(process.pid, root):
            # Numbers mean something within one boot and one namespace.
            ours = (mark.boot, mark.space) == (here.boot, here.space)
            if ours and _is_left(process, mark, known, root):
                found.add(process.pid)
    below = {p.pid for p in known.values() if not found.isdisjoint(line(p, known))}
    own = known.get(os.getpid())  # whoever asks from a shell below a leftover keeps that shell
    spared = {os.getpid(), *(line(own, known) if own is not None else ())}
    return [known[pid] for pid in (found | below) - spared]


def _is_left(process: Process, mark: Mark, known: Mapping[int, Process], root: Path) -> bool:
    launcher = known.get(mark.pid)
    if launcher is None or launcher.started != mark.started:
        return True
    above = line(process, known)
    if mark.pid in above or any(pid and pid not in known for pid in above):
        return False  # in the second case somebody has ended since we looked
    watching = [known[pid] for pid in (process.pid, *above) if pid]
    # Where the kernel has no subreapers, orphans of a launch that runs are nobody's children.
    watching += [p for p in known.values() if p.name == SUPERVISOR and p.started <= process.started]
    return not any(p.name in ENGINE and mark in pages(p.pid, root) for p in watching)


def _carried(pid: int, root: Path) -> Iterator[Mark]:
    yield from pages(pid, root)
    mark = _from_environment(root / f"proc/{pid}")
    # An environment also travels to what others start for a replica (sbatch, at, systemd-run). The
    # score goes from parent to child alone.
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
