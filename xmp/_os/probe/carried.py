"""The marks that a process carries, and whether the kernel vouches for them.

A file name or an environment variable does not prove that a process descends from a launcher: any
user may name a file like a mark and have a process map it, and an environment is copied into jobs,
containers and shells. These prove it:

- a page of a memory file, mapped shared and without access, as only ``launcher_mark`` maps one;
- a resource limit that names the same launcher as the page or the variable.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from xmp._os import marks, proc
from xmp._os.marks import LauncherId, Mark

__all__ = ["Claim", "claims", "runtime_of", "vouched"]

_FIRST_LINE = b"from xmp._processes."
"""Part of the command line of each interpreter that xmp starts: ``system/interpreter``."""
_RUNTIME = re.compile(rf"{re.escape(marks.RUNTIME)}([a-z0-9_]{{1,32}})\b", re.ASCII)


class Claim(NamedTuple):
    """One mark on one process."""

    launcher: LauncherId
    mark: Mark | None
    """None for a limit without a text that names the same launcher."""
    doubt: str
    """What alone carries the mark and proves nothing; empty where the kernel vouches for it."""


def vouched(pid: int, root: Path) -> set[Mark]:
    """Return the marks of a process for which the kernel vouches."""
    found = claims(pid, root)
    return {claim.mark for claim in found if claim.mark is not None and not claim.doubt}


def claims(pid: int, root: Path) -> list[Claim]:
    """Return every mark that a process of this user carries."""
    folder = root / f"proc/{pid}"
    try:
        if folder.stat().st_uid != os.geteuid():
            return []
    except OSError:
        return []
    limit = _limited_by(folder)
    found = []
    for mark, proof in _mapped(folder):
        doubt = "" if proof or mark.launcher == limit else "a mapped file"
        found.append(Claim(mark.launcher, mark, doubt))
    named = _variable(folder)
    if named is not None and named.launcher == limit:
        found.append(Claim(named.launcher, named, ""))
    elif named is not None and _may_descend(named, folder):
        found.append(Claim(named.launcher, named, "its environment"))
    if limit is not None and all(claim.launcher != limit for claim in found):
        found.append(Claim(limit, None, "a resource limit"))
    return found


def runtime_of(pid: int, root: Path) -> str:
    """Return the runtime of a process's launch, as its mapped pages say; empty where none does."""
    found = _RUNTIME.findall(proc.text(root / f"proc/{pid}/maps"))
    return found[-1] if found else ""


# --- pages -------------------------------------------------------------------------------------


def _mapped(folder: Path) -> Iterator[tuple[Mark, bool]]:
    """Yield the marks that are names of mapped pages, and whether the page proves the descent."""
    # Not splitlines: of all that ends a line for Python, the kernel escapes only "\n" in a path.
    for line in proc.text(folder / "maps").split("\n"):
        # address, access, offset, device, inode, path: proc_pid_maps(5)
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and marks.PAGE in fields[5]:
            mark = _parsed(fields[5].partition(marks.PAGE)[2].partition(" ")[0])
            if mark is not None:
                yield mark, _is_page_of_ours(fields, folder)


def _parsed(name: str) -> Mark | None:
    # Without memfd_create(2) the page is in a temporary file: mark-pid-random.
    return Mark.parse(name) or Mark.parse(name.rsplit("-", 2)[0])


def _is_page_of_ours(fields: list[str], folder: Path) -> bool:
    """Return whether a mapped page with a mark's name was made by a launcher of this user.

    A program that is handed another user's memory file (a compositor) maps it with access.
    """
    address, access, _, device, _, path = fields
    if access != "---s" or device != _memory_device() or not path.startswith("/memfd:"):
        return False
    begin, _, end = address.partition("-")
    try:  # its owner is who made it; only a privileged process may look: proc_pid_map_files(5)
        owner = os.stat(folder / f"map_files/{int(begin, 16):x}-{int(end, 16):x}").st_uid
    except PermissionError:
        return True
    except OSError:  # unmapped meanwhile, if the kernel has such a folder
        return not (folder / "map_files").exists()
    return owner == os.geteuid()


@functools.cache
def _memory_device() -> str:
    """Return the device of memory files as maps name it, on which no path leads to a file.

    The kernel keeps shared anonymous memory there, too:
    https://github.com/torvalds/linux/blob/v6.12/mm/shmem.c (shmem_zero_setup)
    """
    with mmap.mmap(-1, mmap.PAGESIZE):
        for line in proc.text("/proc/self/maps").splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5] == "/dev/zero (deleted)" and fields[1][3] == "s":
                return fields[3]
    return ""


# --- variable and limit ------------------------------------------------------------------------


def _variable(folder: Path) -> Mark | None:
    name = f"{marks.VARIABLE}=".encode()
    entries = _bytes(folder / "environ").split(b"\0")
    found = [entry[len(name) :] for entry in entries if entry.startswith(name)]
    return Mark.parse(found[-1].decode(errors="replace")) if found else None


def _may_descend(mark: Mark, folder: Path) -> bool:
    """Return whether a process whose environment has the mark may descend from the launch.

    A job that a replica has submitted (sbatch, at) does not: it has its environment only. Children
    inherit the OOM score, which a container may have given to all of its processes. An interpreter
    that xmp starts gets it later, and is recognised by its command line.
    """
    score = proc.text(folder / "oom_score_adj")
    raised = score.lstrip("-").isdecimal() and int(score) >= mark.score
    return raised or _FIRST_LINE in _bytes(folder / "cmdline")


def _limited_by(folder: Path) -> LauncherId | None:
    """Return the launcher that a process's resource limit names."""
    for line in proc.text(folder / "limits").splitlines():
        if line.startswith("Max file locks"):
            soft = line.split()[3]
            return marks.launcher_of(int(soft)) if soft.isdecimal() else None
    return None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
