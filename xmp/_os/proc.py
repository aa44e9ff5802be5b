"""Reads about processes in ``/proc`` (proc(5)); what cannot be read is empty, or None."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

__all__ = [
    "Process", "affinity", "alive", "foreign", "has_signal", "is_foreign", "limit", "link",
    "namespace", "process", "refusal", "sends_children_away", "status", "text", "ticks",
]  # fmt: skip

_MOUNT_IT = (
    "/proc belongs to another pid namespace: the pids of this one name other processes there. "
    "Mount its own /proc, as `unshare --mount-proc` and `bwrap --proc /proc` do"
)
_CHILDREN_LEAVE = (
    "new processes of this one go to another pid namespace (unshare or setns with CLONE_NEWPID): "
    "their pids name other processes here. Launch before that call, or in a child that mounts /proc"
)


class Process(NamedTuple):
    """One process, from its stat line."""

    pid: int
    name: str
    state: str
    """One letter, as in ps(1): "T" is stopped, "Z" has ended and is not yet reaped."""
    parent: int
    group: int
    session: int
    started: int
    """Clock ticks from the boot to its start: together with the pid this is unique."""


def process(pid: int | str, root: str | os.PathLike[str] = "/") -> Process | None:
    """Return the process with this pid, even one that has ended until its parent has reaped it."""
    if pid != "self" and os.fspath(root) == "/" and is_foreign():
        return None
    line = text(os.path.join(root, f"proc/{pid}/stat"))
    # The second field is the name in brackets, which may itself hold blanks and brackets:
    # https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    head, _, rest = line.rpartition(")")
    number, _, name = head.partition(" (")
    fields = rest.split()
    if len(fields) < 20:
        return None
    parent, group, session, started = (int(fields[n]) for n in (1, 2, 3, 19))
    return Process(int(number), name, fields[0], parent, group, session, started)


def ticks(pid: int) -> tuple[int, int]:
    """Return the processor time of a process, and of its ended children, in ticks of the clock."""
    fields = text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 15:
        return 0, 0
    user, system, of_children, system_of_children = map(int, fields[11:15])
    return user + system, of_children + system_of_children


def alive(pid: int, root: str | os.PathLike[str] = "/") -> Process | None:
    """Return the process with this pid; None if it has ended, reaped or not."""
    found = process(pid, root)
    return None if found is None or found.state in "ZX" else found


def status(pid: int | str = "self") -> dict[str, str]:
    """Return the lines of a process's status file, by name."""
    if pid != "self" and is_foreign():
        return {}
    lines = text(f"/proc/{pid}/status").split("\n")  # the name of a process may hold a "\r"
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def has_signal(status: dict[str, str], mask: str, number: int) -> bool:
    """Return whether a signal is in one of a process's masks: SigIgn, SigCgt, SigBlk."""
    return bool(int(status.get(mask, "0"), 16) >> (number - 1) & 1)


def is_foreign() -> bool:
    """Return whether ``/proc`` is of another pid namespace; False where there is none.

    It takes one system call and is not cached: a fork may be in another namespace with the same
    pid.
    """
    try:
        return os.readlink("/proc/self") != str(os.getpid())
    except FileNotFoundError:
        # Every procfs has this link, but in a namespace that does not see this process it leads
        # nowhere: https://github.com/torvalds/linux/blob/v6.12/fs/proc/self.c#L11-L31
        return os.path.lexists("/proc/self")
    except OSError:
        return False


def sends_children_away() -> bool:
    """Return whether this thread's next child goes to another pid namespace than this process."""
    folder = "/proc/thread-self/ns"
    try:
        own = os.readlink(f"{folder}/pid")
        return os.readlink(f"{folder}/pid_for_children") != own
    except FileNotFoundError:
        # Linux before 4.12 has no such link; later ones lead nowhere until the namespace has its
        # first process: https://man7.org/linux/man-pages/man7/pid_namespaces.7.html
        return os.path.lexists(f"{folder}/pid_for_children")
    except OSError:
        return False


def foreign() -> str:
    """Return what to do where ``/proc`` is of another pid namespace; "" where it is not.

    More exact than ``is_foreign``: two namespaces may have given a process the same pid.
    """
    return _MOUNT_IT if is_foreign() or " " in _own_pids() else ""


def _own_pids() -> str:
    """Return this process's pid in the namespace of ``/proc`` and in each below, to its own."""
    return " ".join(status().get("NSpid", "").split())


def refusal() -> str:
    """Return why no launch may start here, else "": signals to a pid could reach a stranger."""
    return foreign() or (_CHILDREN_LEAVE if sends_children_away() else "")


def namespace(kind: str, root: str | os.PathLike[str] = "/") -> str:
    """Return this process's namespace of a kind: ``pid:[4026531836]``."""
    return link(os.path.join(root, f"proc/self/ns/{kind}"))


def link(path: str | os.PathLike[str]) -> str:
    """Return the target of a symbolic link."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def text(path: str | os.PathLike[str]) -> str:
    """Return a file's text without surrounding blanks."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.readall() or b"").decode(errors="replace").strip()
    except OSError:
        return ""


def limit(which: int) -> tuple[int, int]:
    """Return this process's soft and hard limit; infinite where a sandbox hides them (seccomp)."""
    try:
        return resource.getrlimit(which)
    except OSError:
        return resource.RLIM_INFINITY, resource.RLIM_INFINITY


def affinity() -> tuple[int, ...]:
    """Return the CPUs that this process may run on; empty where system or sandbox hides them."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return ()
