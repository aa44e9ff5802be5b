"""The running launches of this user, and what earlier ones have left.

A process is recognised by the mark that it inherited (``carried``), never by name or pid alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from xmp._os import marks, proc
from xmp._os.marks import LauncherId, Mark
from xmp._os.proc import Process, alive

from .carried import Claim, claims, runtime_of, vouched
from .holders import Holder, age, holder, plain

__all__ = [
    "Doubtful", "Leftovers", "RunningLaunch", "ancestors", "described", "launches", "leftovers",
    "processes",
]  # fmt: skip

SUPERVISOR = "xmp-supervisor"
ENGINE = frozenset(
    {SUPERVISOR, "xmp-template", "xmp-script", "xmp-keeper", "xmp-spare", "xmp-carrier"}
)
"""The names of processes that supervise replicas, fork supervisors or connect launchers."""
ROOT = Path("/")


@dataclass(frozen=True)
class RunningLaunch:
    """One running launch."""

    launcher: int
    supervisor: Process
    replicas: tuple[Process, ...]
    """In the order of their start."""
    members: frozenset[int]
    """Every process below the supervisor."""
    program: str = ""
    """A description for the user: script or notebook, user, age, runtime, state."""


def processes(root: Path = ROOT) -> dict[int, Process]:
    """Return all living processes that this user can see, by pid."""
    numbers = (int(path.name) for path in (root / "proc").glob("[0-9]*") if path.name.isdigit())
    found = (alive(pid, root) for pid in numbers)
    return {process.pid: process for process in found if process is not None}


# --- what runs ---------------------------------------------------------------------------------


def launches(root: Path = ROOT) -> list[RunningLaunch]:
    """Return the running launches of this user, oldest first."""
    known = processes(root)
    found = [_launch(process, known, root) for process in known.values() if _leads(process, known)]
    there = (launch for launch in found if launch is not None)
    return sorted(there, key=lambda launch: (launch.supervisor.started, launch.supervisor.pid))


def _leads(process: Process, known: Mapping[int, Process]) -> bool:
    """Return whether it is a supervisor, and not a replica just forked that still has its name."""
    parent = known.get(process.parent)
    return process.name == SUPERVISOR and (parent is None or parent.name != SUPERVISOR)


def _launch(supervisor: Process, known: Mapping[int, Process], root: Path) -> RunningLaunch | None:
    # Where launches are nested, several processes have launched: the youngest is this launch's.
    mark = max(vouched(supervisor.pid, root), key=lambda mark: mark.started, default=None)
    if mark is None:
        return None
    there = known.get(mark.pid)
    seen = mark.space == marks.mine(str(root)).space  # a container's launcher has another pid here
    if seen and (there is None or there.started != mark.started):
        return None  # it was killed: what is left of the launch is ending, or is a leftover
    below = {p.pid for p in known.values() if supervisor.pid in ancestors(p, known)}
    # A replica leads its process group, so it cannot leave the session (setsid(2)): this leaves out
    # what the supervisor, a subreaper, has adopted.
    replicas = [
        process
        for process in known.values()
        if process.parent == supervisor.pid == process.session and process.group == process.pid
    ]
    replicas.sort(key=lambda process: (process.started, process.pid))
    program = _described(supervisor, mark.program, root)
    return RunningLaunch(mark.pid, supervisor, tuple(replicas), frozenset(below), program)


def _described(supervisor: Process, program: str, root: Path) -> str:
    found = holder(root, root / f"proc/{supervisor.pid}", "")
    runtime = runtime_of(supervisor.pid, root)
    words = [plain(program) or "a program without a name", f"user {found.user}"]
    words += [f"running for {age(found.seconds)}", *([f"runtime {runtime}"] if runtime else ())]
    return ", ".join([*words, "stopped" if supervisor.state in "Tt" else "running"])


def ancestors(process: Process, known: Mapping[int, Process]) -> list[int]:
    """Return the pids of its parent, of the parent's parent, …, as far as they are known."""
    above: list[int] = []
    while process.parent and process.parent not in above:
        above.append(process.parent)
        if process.parent not in known:
            break
        process = known[process.parent]
    return above


# --- what is left --------------------------------------------------------------------------------


# Leftovers are processes of earlier launches that no process of xmp will end. Either their launcher
# is gone; or it lives, but they descend neither from it nor from an ``ENGINE`` process of the
# launch: those adopt the orphans of their launches.

_SETTLE = 1.0
_STEP = 0.02


class Doubtful(NamedTuple):
    """A process that may be a stranger's: only its user should end it."""

    process: Process
    launcher: int
    doubt: str
    """The only thing that names the launch, such as its environment."""

    def __str__(self) -> str:
        return f"{self.doubt} alone names the launch of process {self.launcher}"


class Leftovers(NamedTuple):
    """The leftovers, oldest first."""

    proven: list[Process]
    """Leftovers for which the kernel vouches, with all their descendants."""
    doubtful: list[Doubtful]


def leftovers(root: Path = ROOT, settle: float = _SETTLE) -> Leftovers:
    """Find the leftovers of this user's launches.

    A launch may be ending at this moment: only what is still there after ``settle`` seconds
    counts.
    """
    found = _look(root)
    everything = {*found.proven, *(each.process for each in found.doubtful)}
    end = time.monotonic() + settle
    while any(alive(process.pid, root) for process in everything) and time.monotonic() < end:
        time.sleep(_STEP)  # they are not our children: the kernel reports no end to us
    known = {_identity(process) for process in everything}
    still = _look(root) if everything else found
    return Leftovers(
        sorted((p for p in still.proven if _identity(p) in known), key=_age),
        sorted(
            (each for each in still.doubtful if _identity(each.process) in known),
            key=lambda each: _age(each.process),
        ),
    )


def _identity(process: Process) -> tuple[int, int]:
    return process.pid, process.started


def _age(process: Process) -> tuple[int, int]:
    return process.started, process.pid


def described(process: Process, root: Path = ROOT) -> Holder:
    """Describe a process so that a user can find it: with the program that has launched it.

    A process that xmp has started has a name of xmp's in ``ps``, and the same command line for all
    programs.
    """
    found = holder(root, root / "proc" / str(process.pid), "")
    known = [claim.mark for claim in claims(process.pid, root) if claim.mark is not None]
    program = plain(max(known, key=lambda mark: mark.started).program) if known else ""
    runtime = runtime_of(process.pid, root)
    state = ", stopped" if process.state in "Tt" else ""
    launch = f"{program or found.command}{f', runtime {runtime}' if runtime else ''}{state}"
    if process.name.startswith("xmp-"):
        return replace(found, command=f"{process.name} of {launch}"[:200])
    return replace(found, command=f"{found.command}, of {launch}"[:320]) if program else found


def _look(root: Path) -> Leftovers:
    here, known = marks.mine(str(root)), processes(root)
    own = known.get(os.getpid())  # the user's shell may itself be below a leftover
    spared = {os.getpid(), *(ancestors(own, known) if own is not None else ())}
    proven: set[int] = set()
    doubtful: dict[int, Doubtful] = {}
    for process in known.values():
        for claim in claims(process.pid, root):
            if not _is_from_here(claim, here, process, root):
                continue
            if not _is_left(process, claim.launcher, known, root):
                continue
            if claim.doubt:
                doubtful[process.pid] = Doubtful(process, claim.launcher[0], claim.doubt)
            else:
                proven.add(process.pid)
    proven |= {p.pid for p in known.values() if not proven.isdisjoint(ancestors(p, known))}
    return Leftovers(
        [known[pid] for pid in proven - spared],
        [each for pid, each in doubtful.items() if pid not in proven | spared],
    )


def _is_from_here(claim: Claim, here: Mark, process: Process, root: Path) -> bool:
    """Return whether a claim's launcher is of this boot and pid namespace, and began earlier.

    Pids are unique only within these; no descendant is older than its ancestor.
    """
    if claim.mark is None:
        space = f"proc/{process.pid}/ns/pid"
        same = proc.link(root / space) == proc.namespace("pid", root)
    else:
        same = (claim.mark.boot, claim.mark.space) == (here.boot, here.space)
    return same and process.started >= claim.launcher[1]


def _is_left(
    process: Process, launcher: LauncherId, known: Mapping[int, Process], root: Path
) -> bool:
    pid, started = launcher
    found = known.get(pid)
    if found is None or found.started != started:
        return True
    above = ancestors(process, known)
    if pid in above or any(each and each not in known for each in above):
        return False  # in the second case a parent has ended since we looked
    lineage = (known[each] for each in (process.pid, *above) if each)
    return not any(
        p.name in ENGINE and any(mark.launcher == launcher for mark in vouched(p.pid, root))
        for p in lineage
    )
