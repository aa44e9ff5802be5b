"""Which launches of this user run here.

A process is ours by what it inherited (``_marks``), never by its name or number alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xmp import _marks
from xmp._marks import Mark

__all__ = ["Launch", "Process", "alive", "launches", "line", "pages", "processes"]

SUPERVISOR = "xmp-supervisor"
ENGINE = frozenset({SUPERVISOR, "xmp-template", "xmp-script", "xmp-keeper", "xmp-spare"})
"""What watches over replicas, or will."""
ROOT = Path("/")


@dataclass(frozen=True)
class Process:
    """One process as the kernel tells it."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    started: int
    """In clock ticks after the boot: with the pid, nobody else's."""


@dataclass(frozen=True)
class Launch:
    """One running launch."""

    launcher: int
    supervisor: Process
    replicas: tuple[Process, ...]
    """In the order in which they were made."""
    members: frozenset[int]
    """Every process below the supervisor."""


def alive(pid: int, root: Path = ROOT) -> Process | None:
    """The process with this number, unless it is gone or only its exit status is left."""
    try:
        stat = (root / f"proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, fields = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    numbers = (int(fields[n]) for n in (1, 2, 3, 19))
    return Process(pid, name, fields[0], *numbers)


def processes(root: Path = ROOT) -> dict[int, Process]:
    """All living processes, as far as one may look."""
    numbers = (int(path.name) for path in (root / "proc").glob("[0-9]*") if path.name.isdigit())
    found = (alive(pid, root) for pid in numbers)
    return {process.pid: process for process in found if process is not None}


# --- what runs ---------------------------------------------------------------------------------


def launches(root: Path = ROOT) -> list[Launch]:
    """The running launches of this user, oldest first."""
    known = processes(root)
    found = [_launch(process, known, root) for process in known.values() if _leads(process, known)]
    there = (launch for launch in found if launch is not None)
    return sorted(there, key=lambda launch: (launch.supervisor.started, launch.supervisor.pid))


def _leads(process: Process, known: Mapping[int, Process]) -> bool:
    """A replica that was forked a moment ago still has its supervisor's name."""
    parent = known.get(process.parent)
    return process.name == SUPERVISOR and (parent is None or parent.name != SUPERVISOR)


def _launch(supervisor: Process, known: Mapping[int, Process], root: Path) -> Launch | None:
    marks = {mark.pid for mark in pages(supervisor.pid, root)}
    if not marks:
        return None
    above = [pid for pid in line(supervisor, known) if pid in marks]  # of a launch in a launch
    below = {p.pid for p in known.values() if supervisor.pid in line(p, known)}
    # The leader of a group can leave neither group nor session: what was adopted is another.
    replicas = [
        process
        for process in known.values()
        if process.parent == supervisor.pid == process.session and process.group == process.pid
    ]
    replicas.sort(key=lambda process: (process.started, process.pid))
    launcher = above[0] if above else min(marks)
    return Launch(launcher, supervisor, tuple(replicas), frozenset(below))


def line(process: Process, known: Mapping[int, Process]) -> list[int]:
    """The pids of its parent, of the parent's parent, … as far as they are known."""
    above: list[int] = []
    while process.parent and process.parent not in above:
        above.append(process.parent)
        if process.parent not in known:
            break
        process = known[process.parent]
    return above


def pages(pid: int, root: Path) -> set[Mark]:
    """The launchers that a process of this user comes from."""
    folder = root / f"proc/{pid}"
    try:
        if folder.stat().st_uid != os.geteuid():
            return set()
        lines = (folder / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    names = {line.partition(_marks.PAGE)[2].split()[0] for line in lines if _marks.PAGE in line}
    return {mark for mark in map(_parsed, names) if mark is not None}


def _parsed(name: str) -> Mark | None:
    # Without memory files, the page has the name of a temporary one: mark-pid-random.
    return Mark.parse(name) or Mark.parse(name.rsplit("-", 2)[0])
