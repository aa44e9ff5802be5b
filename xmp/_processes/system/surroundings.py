"""What every launch needs of its host: /proc, /dev/null, and room for open files.

Looked at before a process exists: later the lack of it shows as a failure of whatever needs it
first, or as wrong facts of the host, since files that cannot be opened count as missing.
"""

from __future__ import annotations

import errno
import os
import resource
import sys

from xmp._os import proc

__all__ = ["limits", "refusal", "refusal_of_replicas"]

_PIPES = 9
"""Pairs of open files that a launcher needs at a time: 17 (ulimit -n 29, 12 of them in use)."""
_OWN_FILES, _FILES_OF_ONE = 30, 4
"""Of a supervisor, and there for each replica."""


def refusal() -> str:
    """Why no launch can start in this process; empty if one can."""
    try:
        os.close(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if not isinstance(error, (FileNotFoundError, PermissionError)):
            return _no_file(error)
        return (
            f"{os.devnull}: {error.strerror}; replicas have it as their standard input. "
            "Make it: mknod -m 666 /dev/null c 1 3"
        )
    if sys.platform == "linux" and not os.path.lexists("/proc/self"):
        return (
            "/proc is not there: xmp watches its processes through it. "
            "Mount it: mount -t proc proc /proc"
        )
    return _forbidden(_errno_of_setpgid()) or _no_room()


def _errno_of_setpgid() -> int:
    """What the kernel says to a call that it refuses without a sandbox too, with EINVAL."""
    try:
        os.setpgid(0, -1)
    except OSError as error:
        return error.errno or 0
    return 0


def _forbidden(code: int) -> str:
    """Why no launch can start where setpgid(2) gives this; empty where it can."""
    if code not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return ""
    return (
        f"setpgid(2): {os.strerror(code)}; a sandbox (seccomp) forbids it to this process, and xmp "
        "ends a replica and its children by their process group. Allow the call in its profile"
    )


def refusal_of_replicas(replicas: int) -> str:
    """Why the supervisor of so many could not open enough files; it may raise its soft limit."""
    _, hard = proc.limit(resource.RLIMIT_NOFILE)
    needed = _OWN_FILES + _FILES_OF_ONE * replicas
    if hard == resource.RLIM_INFINITY or needed <= hard:
        return ""
    return (
        f"a process may have {hard} open files (ulimit -Hn), and the supervisor of {replicas} "
        f"replicas needs {needed}: raise the limit"
    )


def limits() -> str:
    """The limits that a fork or a new open file may have reached."""
    known = []
    for which, what in (
        (resource.RLIMIT_NPROC, "processes (ulimit -u)"),
        (resource.RLIMIT_NOFILE, "open files (ulimit -n)"),
        (resource.RLIMIT_AS, "bytes of address space (ulimit -v)"),
    ):
        soft, _ = proc.limit(which)
        if soft != resource.RLIM_INFINITY:
            known.append(f"{soft} {what}")
    return f"Limits: {', '.join(known) or 'none'}; a container may have others"


def _no_room() -> str:
    """Tried: how many are open is known to the kernel alone, and what others have open counts."""
    taken: list[int] = []
    try:
        for _ in range(_PIPES):
            taken += os.pipe()
    except OSError as error:
        return _no_file(error)
    finally:
        for descriptor in taken:
            os.close(descriptor)
    return ""


def _no_file(error: OSError) -> str:
    soft, hard = proc.limit(resource.RLIMIT_NOFILE)
    return (
        f"{error.strerror}: a launch needs {2 * _PIPES} more open files in this process, which "
        f"may have {soft} (ulimit -n; ulimit -Hn is {hard}). Raise the limit, or close some"
    )
