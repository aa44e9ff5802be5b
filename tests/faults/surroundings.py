"""Where a launcher of a round lives: its own ``/dev/shm`` and memory group, limits.

Private shared memory also shows what a launch has left there, whatever else runs on this host.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

from kinds import Round

__all__ = ["GROUP", "limit_memory", "make_group", "private_memory", "settle"]

GROUP = "FAULTS_GROUP"

_CLOSED = {"closed-stdin": (0,), "closed-streams": (0, 1, 2)}
_CLONE_NEWNS = 0x00020000
_MS_PRIVATE_REC = (1 << 18) | (1 << 14)
_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")
_SMALL = 8 << 20
_FILES = 256


def settle(round: Round) -> None:
    """Live as this round wants it: the program begins again, as if it had been started so."""
    if "FAULTS_SETTLED" in os.environ:
        return
    os.environ["FAULTS_SETTLED"] = "1"
    if os.geteuid() == 0:
        private_memory(_SMALL if round.kind == "full-shm" else 0)
    if GROUP in os.environ:
        (Path(os.environ[GROUP]) / "cgroup.procs").write_text(str(os.getpid()))
    if round.kind == "full-shm":
        os.environ["XMP_WITHOUT"] = "memfd"
    if round.kind == "few-descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    for descriptor in _CLOSED.get(round.kind, ()):
        os.close(descriptor)
    os.execv(sys.executable, [sys.executable, *sys.argv])


def private_memory(size: int) -> None:
    """Mount a ``/dev/shm`` that only this process and its children see."""
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size}".encode() if size else None
    if (
        libc.unshare(_CLONE_NEWNS)
        or libc.mount(b"none", b"/", None, _MS_PRIVATE_REC, None)
        or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, options)
    ):
        raise OSError(ctypes.get_errno(), "no private /dev/shm")


# --- memory groups: version 1 or 2, whichever this host has --------------------------------------


def make_group(name: str) -> Path:
    """Make a memory group, without a limit for now."""
    place = _V2
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            place = _V1 / path.strip("/")
    if place == _V2:
        (_V2 / "cgroup.subtree_control").write_text("+memory")
    (place / name).mkdir()
    return place / name


def limit_memory(more: int) -> None:
    """Let this process's group have so many bytes more than it has now."""
    path = Path(os.environ[GROUP])
    limit = path / "memory.limit_in_bytes"
    if limit.exists():
        limit.write_text(str(int((path / "memory.usage_in_bytes").read_text()) + more))
    else:
        (path / "memory.swap.max").write_text("0")
        used = int((path / "memory.current").read_text())
        (path / "memory.max").write_text(str(used + more))
