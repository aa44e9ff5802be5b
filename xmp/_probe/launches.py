"""The running launches of this user.

A process is recognised by the mark that it inherited (``carried``), never by name or pid alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xmp._proc import Process, alive

from .carried import vouched

__all__ = ["Launch", "ancestors", "launches", "processes"]

SUPERVISOR = "xmp-supervisor"
ENGINE = frozenset(
    {SUPERVISOR, "xmp-template", "xmp-script", "xmp-keeper", "xmp-spare", "xmp-carrier"}
)
"""The names of processes that supervise replicas, fork supervisors or connect launchers."""
ROOT = Path("/")


@dataclass(frozen=True)
class Launch:
    """One running launch."""

    launcher: int
    supervisor: Process
    replicas: tuple[Process, ...]
    """In the order of their start."""
    members: frozenset[int]
    """Every process below the supervisor."""


def processes(root: Path = ROOT) -> dict[int, Process]:
    """All living processes that this user can see, by pid."""
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
    """Not a replica that was forked a moment ago: it still has its supervisor's name."""
    parent = known.get(process.parent)
    return process.name == SUPERVISOR and (parent is None or parent.name != SUPERVISOR)


def _launch(supervisor: Process, known: Mapping[int, Process], root: Path) -> Launch | None:
    marks = {mark.pid for mark in vouched(supervisor.pid, root)}
    if not marks:
        return None
    # Where launches are nested, several ancestors have launched: the nearest is this launch's.
    above = [pid for pid in ancestors(supervisor, known) if pid in marks]
    below = {p.pid for p in known.values() if supervisor.pid in ancestors(p, known)}
    # A replica leads its process group, so it cannot leave the session (setsid(2)): this leaves out
    # what the supervisor, a subreaper, has adopted.
    replicas = [
        process
        for process in known.values()
        if process.parent == supervisor.pid == process.session and process.group == process.pid
    ]
    replicas.sort(key=lambda process: (process.started, process.pid))
    launcher = above[0] if above else min(marks)
    return Launch(launcher, supervisor, tuple(replicas), frozenset(below))


def ancestors(process: Process, known: Mapping[int, Process]) -> list[int]:
    """The pids of its parent, of the parent's parent, …, as far as they are known."""
    above: list[int] = []
    while process.parent and process.parent not in above:
        above.append(process.parent)
        if process.parent not in known:
            break
        process = known[process.parent]
    return above
