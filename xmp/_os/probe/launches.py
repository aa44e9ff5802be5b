"""The running launches of this user.

A process is recognised by the mark that it inherited (``carried``), never by name or pid alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xmp._os import marks
from xmp._os.proc import Process, alive

from .carried import runtime_of, vouched
from .holders import age, holder, plain

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
    program: str = ""
    """A description for the user: script or notebook, user, age, runtime, state."""


def processes(root: Path = ROOT) -> dict[int, Process]:
    """Return all living processes that this user can see, by pid."""
    numbers = (int(path.name) for path in (root / "proc").glob("[0-9]*") if path.name.isdigit())
    found = (alive(pid, root) for pid in numbers)
    return {process.pid: process for process in found if process is not None}


# --- what runs ---------------------------------------------------------------------------------


def launches(root: Path = ROOT) -> list[Launch]:
    """Return the running launches of this user, oldest first."""
    known = processes(root)
    found = [_launch(process, known, root) for process in known.values() if _leads(process, known)]
    there = (launch for launch in found if launch is not None)
    return sorted(there, key=lambda launch: (launch.supervisor.started, launch.supervisor.pid))


def _leads(process: Process, known: Mapping[int, Process]) -> bool:
    """Return whether it is a supervisor, and not a replica just forked that still has its name."""
    parent = known.get(process.parent)
    return process.name == SUPERVISOR and (parent is None or parent.name != SUPERVISOR)


def _launch(supervisor: Process, known: Mapping[int, Process], root: Path) -> Launch | None:
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
    return Launch(mark.pid, supervisor, tuple(replicas), frozenset(below), program)


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
