"""Finds the processes that hold a device or libtpu's lock."""

from __future__ import annotations

import fnmatch
import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xmp._os import proc

__all__ = [
    "LOCK", "Holder", "age", "device_holders", "holder", "lock_holders", "open_among",
    "open_files", "plain",
]  # fmt: skip

LOCK = "tmp/libtpu_lockfile"
TPU_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")


@dataclass(frozen=True)
class Holder:
    """A process that holds something, described so that a user can find it."""

    pid: int
    user: str
    seconds: int
    """How long it has been running."""
    command: str
    what: str
    """The file that it holds."""

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.user}, running for {age(self.seconds)}): {self.command}"


def device_holders(root: Path) -> list[Holder]:
    """Return other processes with an open device file; other users' as far as permissions allow."""
    found = []
    for process in _processes(root):
        held = open_among(process, TPU_FILES)
        if held and int(process.name) != os.getpid():
            found.append(holder(root, process, ", ".join(held)))
    return found


def lock_holders(root: Path) -> list[Holder]:
    """Return processes that hold the record lock on libtpu's file; the file alone locks nothing."""
    lock = root / LOCK
    try:
        inode = str(lock.stat().st_ino)
    except OSError:
        return []
    found = []
    # A line has number, kind, mode, access, pid, device:device:inode, first and last byte.
    for line in proc.text(root / "proc/locks").splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "POSIX" and words[5].rpartition(":")[2] == inode:
            found.append(holder(root, root / "proc" / words[4], str(lock)))
    return found


def _processes(root: Path) -> Iterator[Path]:
    return (path for path in sorted((root / "proc").glob("[0-9]*")) if path.name.isdigit())


def open_files(process: Path) -> Iterator[str]:
    """Yield the readable targets of a process's descriptors; ``process`` is its folder in /proc."""
    try:
        names = list((process / "fd").iterdir())
    except OSError:
        return
    for name in names:
        try:
            yield str(name.readlink())
        except OSError:
            continue


def open_among(process: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files that a process has open and that match a pattern, sorted."""
    files = set(open_files(process))
    return sorted(f for f in files if any(fnmatch.fnmatchcase(f, each) for each in patterns))


def holder(root: Path, process: Path, what: str) -> Holder:
    """Return the process with this folder in /proc as the holder of ``what``."""
    command = " ".join(proc.text(process / "cmdline").split("\0")).strip()
    return Holder(
        pid=int(process.name),
        user=_user(process),
        seconds=_running(root, process),
        command=(command or "unknown command")[:120],
        what=what,
    )


def _user(process: Path) -> str:
    try:
        owner = process.stat().st_uid
        return pwd.getpwuid(owner).pw_name
    except OSError:
        return "unknown user"
    except KeyError:
        return f"user {owner}"


def _running(root: Path, process: Path) -> int:
    found = proc.process(process.name, root)
    uptime = proc.text(root / "proc/uptime").split()
    if found is None or not uptime:
        return 0
    return max(int(float(uptime[0]) - found.started / os.sysconf("SC_CLK_TCK")), 0)


def age(seconds: int) -> str:
    """Return a duration in words, in the largest unit of which it has at least two."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def plain(text: str, most: int = 120) -> str:
    """Return the end of a text that any process may have written, without terminal controls."""
    return "".join(each if each.isprintable() else "?" for each in text[-most:])
