"""Checks that this host and this process allow a launch.

Every launch needs /proc, /dev/null, and room for open files. This is checked before a process
exists: later the lack of something shows as a failure of the code that needs it first, or as wrong
facts of the host, since files that cannot be opened count as missing.

Some libraries replace forks, threads and waits in the whole process. After gevent's or eventlet's
monkey-patching a fork has a copy of the library's event loop, and aborts or hangs in it. A debugger
that follows child processes (debugpy's pydevd) starts threads in each of them, templates and
supervisors too, so none of them can be forked safely.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import NamedTuple

from xmp._os import proc

__all__ = ["Patch", "limits", "patch_of_this_process", "refusal", "refusal_of_replicas"]

_PIPES = 9
"""Pairs of open files that a launcher needs at a time: 17 (ulimit -n 29, 12 of them in use)."""
_OWN_FILES, _FILES_OF_ONE = 30, 4
"""The files that a supervisor needs for itself, and for each replica."""


def refusal() -> str:
    """Return why no launch can start in this process; "" if one can."""
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
    """Return the error of a setpgid(2) call that the kernel itself refuses with EINVAL.

    Another error comes from a sandbox.
    """
    try:
        os.setpgid(0, -1)
    except OSError as error:
        return error.errno or 0
    return 0


def _forbidden(code: int) -> str:
    """Return why no launch can start if setpgid(2) fails with this error; "" if one can."""
    if code not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return ""
    return (
        f"setpgid(2): {os.strerror(code)}; a sandbox (seccomp) forbids it to this process, and xmp "
        "ends a replica and its children by their process group. Allow the call in its profile"
    )


def refusal_of_replicas(replicas: int) -> str:
    """Return why the supervisor of this many replicas could not open enough files; else "".

    The hard limit counts, since the supervisor raises its soft limit.
    """
    _, hard = proc.limit(resource.RLIMIT_NOFILE)
    needed = _OWN_FILES + _FILES_OF_ONE * replicas
    if hard == resource.RLIM_INFINITY or needed <= hard:
        return ""
    return (
        f"a process may have {hard} open files (ulimit -Hn), and the supervisor of {replicas} "
        f"replicas needs {needed}: raise the limit"
    )


def limits() -> str:
    """Return the limits, as text, that a fork or a new open file may have reached."""
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
    """Return why a launch cannot open enough files here; else "".

    The files are opened to find out: only the kernel knows how many are open, and those of other
    processes count as well.
    """
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


class Patch(NamedTuple):
    """A change that a library has made to this process."""

    text: str
    """The library and what it does, as a sentence for users."""
    allows_spawn: bool = True
    """Whether fresh interpreters can be launched nevertheless."""


def patch_of_this_process() -> Patch | None:
    """Return the patch that forbids a fork here; None if there is none."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_anything_patched():
        return Patch("gevent.monkey.patch_all() has replaced the waits and forks of this process")
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.already_patched:
        # Its select has no poll().
        text = "eventlet.monkey_patch() has replaced the waits and threads of this process"
        return Patch(text, allows_spawn=False)
    if hasattr(os, "original_fork"):  # pydevd keeps it there (_pydev_bundle/pydev_monkey.py)
        return Patch("debugpy follows this process and its children")
    return None
