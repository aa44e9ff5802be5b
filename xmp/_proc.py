"""What ``/proc`` says of processes (proc(5)); what cannot be read is empty, or None."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["Process", "alive", "namespace", "process", "status", "text"]


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
    """In clock ticks after the boot: together with the pid it is unique."""


def process(pid: int | str, root: str | os.PathLike[str] = "/") -> Process | None:
    """The process with this pid; one that has ended, too, until its parent has reaped it."""
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


def alive(pid: int, root: str | os.PathLike[str] = "/") -> Process | None:
    """The process with this pid; None if it has ended, reaped or not."""
    found = process(pid, root)
    return None if found is None or found.state in "ZX" else found


def status(pid: int | str = "self") -> dict[str, str]:
    """The lines of a process's status file, by name."""
    lines = text(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def namespace(kind: str, root: str | os.PathLike[str] = "/") -> str:
    """This process's namespace of a kind: ``pid:[4026531836]``."""
    try:
        return os.readlink(os.path.join(root, f"proc/self/ns/{kind}"))
    except OSError:
        return ""


def text(path: str | os.PathLike[str]) -> str:
    """A file's text without surrounding blanks."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.readall() or b"").decode(errors="replace").strip()
    except OSError:
        return ""
