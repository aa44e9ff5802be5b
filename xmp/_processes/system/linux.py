"""The kernel features that the engine likes to have, each with a way to do without it.

Old containers, gVisor and macOS lack some of them. ``XMP_WITHOUT`` (comma list of pidfd, memfd,
close_range, subreaper, setsig, pdeathsig) switches them off, which is how the fallbacks are tested.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "LONGEST_WAIT",
    "arm",
    "close_from",
    "die_with_parent",
    "disarm",
    "fork_quietly",
    "has",
    "highest_descriptor",
    "let_go",
    "memory_file",
    "move_above",
    "open_pidfd",
    "own_description",
    "preferred_victims",
    "raise_descriptor_limit",
    "seal",
    "send_nowhere",
    "set_name",
    "standard_numbers_taken",
    "subreaper",
    "tidy_heap",
]

LONGEST_WAIT = 1e6
"""Seconds: poll and epoll count milliseconds in 31 bits. Who wants to wait longer asks again."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_F_ADD_SEALS = 1033
_F_SEALS_ALL = 0x0001 | 0x0002 | 0x0004 | 0x0008
_LINUX = sys.platform == "linux"
_SIGKILL = int(signal.SIGKILL)
_libc = ctypes.CDLL(None, use_errno=True)
_without = frozenset(os.environ.get("XMP_WITHOUT", "").replace(" ", "").split(","))


def has(feature: str) -> bool:
    """Whether an optional feature may be used here."""
    return _LINUX and feature not in _without


def _prctl(option: int, value: int) -> bool:
    return _LINUX and _prctl_of_numbers(option, value, 0, 0, 0) == 0


# Declared types make a call touch half as many pages, which counts in a fresh fork.
_prctl_of_numbers: Any = _libc["prctl"] if _LINUX else None
_prctl_of_text: Any = _libc["prctl"] if _LINUX else None
if _LINUX:
    _prctl_of_numbers.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    _prctl_of_text.argtypes = (ctypes.c_int, ctypes.c_char_p, *[ctypes.c_ulong] * 3)


def fork_quietly() -> int:
    """``os.fork`` without the warnings of libraries and Python 3.12: it was thought about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def tidy_heap() -> None:
    """Join the free pieces of the C heap now, and give free pages back.

    glibc does it at the first larger ``malloc`` or ``free``: in every fork anew, where it writes
    into some 700 pages that torch's import has left (3 µs each).
    """
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def subreaper() -> bool:
    """Become the parent of every orphan among our descendants."""
    return has("subreaper") and _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, pipe: int, lifeline: int) -> bool:
    """Let the kernel SIGKILL us when ``parent`` ends, our group when its end of ``pipe`` closes.

    ``lifeline`` is the number for our end of the pipe. Ends now when the parent has ended
    already. Returns False where the kernel does not watch the pipe.
    """
    if has("pdeathsig"):
        # The signal belongs to the *thread* that forked us: only single-threaded parents count.
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    own = own_description(pipe)
    os.dup2(own, lifeline, inheritable=False)
    os.close(own)
    armed = _signal_our_group(lifeline)
    if os.getppid() != parent:
        os._exit(1)
    return armed


def set_name(name: str) -> None:
    """Name the process for ``ps`` (15 bytes)."""
    if _LINUX:
        _prctl_of_text(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def arm(lifeline: int) -> bool:
    """Let the kernel SIGKILL our process group when the lifeline's other end closes.

    Needs neither a thread nor the interpreter, so it also works in native code that holds the
    GIL. The owner is a property of the open file: ``lifeline`` must not be shared with a process
    of another group. Returns False where the kernel cannot do it.
    """
    armed = _signal_our_group(lifeline)
    if armed and _hung_up(lifeline):  # closed before we were armed: no signal would come
        os.killpg(0, signal.SIGKILL)
    return armed


def _signal_our_group(lifeline: int) -> bool:
    if not has("setsig"):
        return False
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, _SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    except OSError:
        return False
    return True


def _hung_up(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, 0)
    return bool(poller.poll(0))


def disarm(lifeline: int) -> None:
    """Undo ``arm``: from here on the process looks at its lifeline itself."""
    if has("setsig"):
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags & ~os.O_ASYNC)


def own_description(pipe: int) -> int:
    """Open a pipe's end anew, so that its owner and flags are ours alone (never below 3)."""
    try:
        return os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return os.dup(pipe)


def memory_file(name: str) -> int:
    """A descriptor of a file that lives in memory and has no name others could open."""
    if has("memfd"):
        try:
            return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
                raise
    place = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"
    # Not tempfile: it imports `random`, which beside a script may be the user's own module.
    path = f"{place}/{name}-{os.getpid()}-{os.urandom(8).hex()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


def seal(descriptor: int) -> None:
    """Make a memory file immutable, so that every process that maps it sees the same bytes."""
    if has("memfd"):
        try:
            fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEALS_ALL)
        except OSError:
            pass  # a temporary file cannot be sealed; nobody else has its descriptor


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when ``pid`` ends, or None."""
    if not has("pidfd") or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def move_above(descriptor: int, base: int, inheritable: bool = False) -> int:
    """Move a descriptor to a number that is at least ``base``."""
    command = fcntl.F_DUPFD if inheritable else fcntl.F_DUPFD_CLOEXEC
    moved = fcntl.fcntl(descriptor, command, base)
    os.close(descriptor)
    return moved


def _open_descriptors() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return [int(name) for name in os.listdir(folder)]
        except OSError:
            continue
    return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))


def highest_descriptor() -> int:
    """The highest descriptor number in use."""
    return max(_open_descriptors())


def close_from(base: int) -> None:
    """Close every descriptor from ``base`` up."""
    if has("close_range"):
        os.closerange(base, resource.getrlimit(resource.RLIMIT_NOFILE)[1] & 0x7FFFFFFF)
        return
    for descriptor in _open_descriptors():
        if descriptor >= base:
            _close_quietly(descriptor)


def let_go(keep: Iterable[int], below: int | None = None) -> None:
    """Let go of every open file above 2 (and under ``below``) that is not in ``keep``.

    The numbers stay taken, by nowhere: a stale object that still writes to its number, or closes
    it, must not hit a file that was opened since.
    """
    spared, found = set(keep), []
    for descriptor in _open_descriptors():
        if descriptor > 2 and descriptor not in spared and (below is None or descriptor < below):
            try:
                os.fstat(descriptor)
            except OSError:
                continue  # the directory listing's own descriptor is gone already
            found.append(descriptor)
    send_nowhere(found)


def send_nowhere(descriptors: Iterable[int]) -> None:
    """Let go of these open files; their numbers stay taken."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


def _close_quietly(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # the directory listing's own descriptor is gone already


def raise_descriptor_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one; returns the limits as they were."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    except (OSError, ValueError):
        pass  # macOS names a hard limit that it does not accept
    return before


@contextmanager
def standard_numbers_taken() -> Iterator[None]:
    """While inside, no new descriptor gets a number below 3, also where those are closed."""
    taken = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)]
    while taken[-1] <= 2:
        taken.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
    os.close(taken.pop())
    try:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


@contextmanager
def preferred_victims() -> Iterator[None]:
    """What is forked inside is what the kernel takes first when memory runs out.

    A replica shall go before its supervisor or the launcher do.
    """
    before = _oom_score(None)
    if before is not None:
        _oom_score(min(1000, before + 300))
    try:
        yield
    finally:
        if before is not None:
            _oom_score(before)


def _oom_score(wanted: int | None) -> int | None:
    try:
        with open("/proc/self/oom_score_adj", "r+" if wanted is not None else "r") as file:
            if wanted is None:
                return int(file.read())
            file.write(str(wanted))
    except (OSError, ValueError):
        pass
    return None
