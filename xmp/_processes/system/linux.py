"""Kernel features that the engine uses if they exist, and replaces if they do not.

``XMP_WITHOUT``, a comma list of these names, switches them off, so that tests take the other path:

pidfd        Linux 5.3. gVisor has it since May 2026, Docker's seccomp profile since 20.10
             (moby#41665). Without it the end of a process is polled for.
close_range  Linux 5.9, gVisor since 2022. Without it descriptors are closed one by one.
memfd        Every Linux that xmp supports, unless a sandbox forbids it; not with glibc before 2.27,
             and not on macOS. Without it memory files are unlinked temporary files.
setsig, pdeathsig, subreaper
             Every such Linux, but not macOS. Without the first two a thread waits for the end of
             the replica's parent; without the third nothing finds orphans.
passcred     Every such Linux and gVisor, but not macOS. Without it a child that still has the
             replica's connection is taken for the replica.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from xmp._os import proc, signals
from xmp._os.marks import ADDED_SCORE

from . import linux

__all__ = [
    "LONGEST_WAIT", "arm", "close_range", "continue_on_hang_up", "die_with_parent", "fork",
    "fork_quietly", "has_fixed_size", "has_memory_files", "kill_on_hang_up", "killed_with_parent",
    "kills_on_hang_up", "look_after", "memory_file", "names_senders", "open_pidfd",
    "preferred_victims", "ready", "reopened", "seal", "seal_size", "seals_of", "set_name",
    "set_owner", "subreaper", "tidy_heap",
]  # fmt: skip

LONGEST_WAIT = 1e6
"""The longest wait in seconds: poll(2) and epoll_wait(2) count milliseconds in an int. A longer
wait takes several."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_MFD_CLOEXEC_AND_ALLOW_SEALING = 0x0001 | 0x0002
_FORBIDDEN = (errno.ENOSYS, errno.EPERM, errno.EACCES)
"""The errors of memfd_create under a seccomp filter or with the sysctl vm.memfd_noexec = 2."""
_SYS_CLOSE_RANGE = 436  # on every architecture: syscalls(2)
_OOM_SCORE = "/proc/self/oom_score_adj"
_LINUX = sys.platform == "linux"
_SIGKILL, _SIGCONT = int(signal.SIGKILL), int(signal.SIGCONT)
_libc = ctypes.CDLL(None)
_without = frozenset(os.environ.get("XMP_WITHOUT", "").replace(" ", "").split(","))
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_WRITE = 1, 2, 4, 8
_F_SEALS_ALL = _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_WRITE


def _has(feature: str) -> bool:
    return _LINUX and feature not in _without


def _declared(name: str, *types: Any) -> Any:
    """Return a libc function with declared types: a call touches half as many pages in a fork."""
    function = _libc[name]
    function.argtypes = types
    return function


if _LINUX:
    _prctl_of_numbers = _declared("prctl", ctypes.c_int, *[ctypes.c_ulong] * 4)
    _prctl_of_text = _declared("prctl", ctypes.c_int, ctypes.c_char_p, *[ctypes.c_ulong] * 3)
    _close_range = _declared("syscall", ctypes.c_long, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
# Not os.memfd_create: Pythons that were built with an older glibc than they run on, such as uv's
# and conda's, lack it: https://github.com/astral-sh/uv/issues/15081
_mmap: Any = ctypes.CDLL(None, use_errno=True)["mmap"]
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong)
_memfd_create: Any = getattr(ctypes.CDLL(None, use_errno=True), "memfd_create", None)


def _prctl(option: int, value: int) -> bool:
    return _LINUX and bool(_prctl_of_numbers(option, value, 0, 0, 0) == 0)


def fork() -> int:
    """Call the real ``os.fork``, even if pydevd (debugpy) has replaced it by its own function.

    In the child that function first connects to the debug adapter, whose answer never comes if no
    client is attached (_pydev_bundle/pydev_monkey.py, create_fork). A replica is followed by the
    debugger nevertheless, through the exec after the fork.
    """
    return int(getattr(os, "original_fork", os.fork)())


def fork_quietly() -> int:
    """Fork without the warnings of libraries and Python 3.12 about forks with threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fork()


def tidy_heap() -> None:
    """Join the free pieces of the C heap now, and give free pages back: malloc_trim(3).

    Otherwise glibc does it at the first larger ``malloc`` or ``free``, in every fork again, where
    it writes into some 700 pages that torch's import has left (3 µs each).
    """
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def subreaper() -> bool:
    """Become the parent of every orphan among our descendants."""
    return _has("subreaper") and _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, pipe: int, lifeline: int) -> bool:
    """Let the kernel SIGKILL us when ``parent`` ends, our group when its end of ``pipe`` closes.

    ``lifeline`` is the number for our end of the pipe. Exit now if the parent has already ended.
    Return False if the kernel cannot watch the pipe.
    """
    # The signal comes when the *thread* that forked us ends, so parents are single-threaded:
    # https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
    killed_with_parent()
    try:  # opened again, so that its owner and flags are ours alone
        own = reopened(pipe, os.O_RDONLY)
    except OSError:
        own = os.dup(pipe)
    os.dup2(own, lifeline, inheritable=False)
    os.close(own)
    armed = _kill_our_group_with(lifeline)
    if os.getppid() != parent:
        os._exit(1)
    return armed


def killed_with_parent() -> None:
    """Let the kernel SIGKILL us, stopped or not, when the *thread* that forked us ends."""
    if _has("pdeathsig"):
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def set_name(name: str) -> None:
    """Name the process for ``ps`` (15 bytes)."""
    if _LINUX:
        _prctl_of_text(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def arm(lifeline: int) -> bool:
    """Let the kernel SIGKILL our process group when the lifeline's other end closes.

    It needs neither a thread nor the interpreter, so it also works in native code that holds the
    GIL. The owner belongs to the open file description (F_SETOWN, fcntl(2)), which no process of
    another group may therefore share. Return False if the kernel cannot do it.
    """
    armed = _kill_our_group_with(lifeline)
    if armed and ready(lifeline, 0):  # closed before we were armed: no signal would come
        os.killpg(0, signal.SIGKILL)
    return armed


def _kill_our_group_with(pipe: int) -> bool:
    return set_owner(pipe, -os.getpgrp()) and kill_on_hang_up(pipe)


def look_after(lifeline: int) -> None:
    """Undo ``arm``: the process watches its lifeline itself from now on, and ends in order.

    A stopped process watches nothing, so a hang-up then continues our process group (SIGCONT).
    """
    continue_on_hang_up(lifeline, -os.getpgrp())


def kills_on_hang_up() -> bool:
    """Return whether this kernel can kill a process when the other end of a pipe closes."""
    return _has("setsig")


def kill_on_hang_up(pipe: int) -> bool:
    """Let a hang-up kill the pipe's owner from now on; a pipe has none until ``set_owner``.

    Return False if the kernel cannot do it.
    """
    return _signal_on_hang_up(pipe, _SIGKILL)


def continue_on_hang_up(pipe: int, owner: int) -> None:
    """Let a hang-up continue a stopped ``owner`` from now on: a process, or a group if negative.

    If the kernel cannot do it, a stopped process stays stopped.
    """
    if set_owner(pipe, owner):
        _signal_on_hang_up(pipe, _SIGCONT)


def _signal_on_hang_up(pipe: int, number: int) -> bool:
    if not _has("setsig"):
        return False
    try:
        fcntl.fcntl(pipe, fcntl.F_SETSIG, number)
        flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
    except OSError:
        return False
    return True


def set_owner(pipe: int, owner: int) -> bool:
    """Set the process, or the group if negative, that a hang-up's signal goes to.

    Return False if the kernel cannot do it.
    """
    if not _has("setsig"):
        return False
    try:
        fcntl.fcntl(pipe, fcntl.F_SETOWN, owner)
    except OSError:
        return False
    return True


def reopened(pipe: int, mode: int) -> int:
    """Open one end of the same pipe again, as an open file description of its own."""
    return os.open(f"/proc/self/fd/{pipe}", mode | os.O_NONBLOCK | os.O_CLOEXEC)


def ready(descriptor: int, events: int, seconds: float | None = 0) -> bool:
    """Return whether an event of poll(2), an error or a hang-up comes within ``seconds``.

    In a launcher, return False earlier if a signal came: ``signals.deliver`` runs its handler.
    """
    return any_ready([descriptor], events, seconds)


def any_ready(descriptors: Iterable[int], events: int, seconds: float | None = 0) -> bool:
    """Return the same as ``ready`` for any of several descriptors."""
    seconds = signals.step(seconds)
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, events)
    most = None if seconds is None else min(max(0.0, seconds), LONGEST_WAIT) * 1000
    return bool(signals.interruptible(poller.poll, most))


def close_range(first: int) -> bool:
    """Close every descriptor from ``first`` up. Return False if the kernel cannot do it.

    os.closerange is not used: in a Python that was built with a glibc before 2.34 (many of uv's and
    conda's) it calls close(2) for each number up to the limit, which may be a billion.
    """
    return _has("close_range") and _close_range(_SYS_CLOSE_RANGE, first, 0xFFFFFFFF, 0) == 0


def memory_file(name: str) -> int:
    """Return a descriptor of a file in memory, which no other process can open by name."""
    if _has("memfd") and _memfd_create is not None:
        descriptor = int(_memfd_create(name.encode(), _MFD_CLOEXEC_AND_ALLOW_SEALING))
        if descriptor >= 0:
            return descriptor
        reason = ctypes.get_errno()
        if reason not in _FORBIDDEN:
            raise OSError(reason, os.strerror(reason))
    place = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"
    # Not tempfile: it imports `random`, which may be a module of the user's next to the script.
    path = f"{place}/{name}-{os.getpid()}-{os.urandom(8).hex()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


def mapped(descriptor: int, size: int) -> memoryview:
    """Return the shared memory of a file. Raises OSError.

    Python's ``mmap`` would keep a duplicate of the descriptor, unless told otherwise (3.13).
    """
    both, shared = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
    address = _mmap(None, size, both, shared, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"mmap of {size} bytes")
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def names_senders() -> bool:
    """Return whether a local socket with SO_PASSCRED tells the sending process of each packet."""
    return _has("passcred")


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when ``pid`` ends, or None."""
    if not _has("pidfd") or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


@contextmanager
def preferred_victims() -> Iterator[None]:
    """Have the kernel kill processes forked inside before this one when memory runs out."""
    before = proc.text(_OOM_SCORE)
    if before:
        _write_oom_score(min(1000, int(before) + ADDED_SCORE))
    try:
        yield
    finally:
        if before:
            _write_oom_score(int(before))


def _write_oom_score(score: int) -> None:
    try:
        with open(_OOM_SCORE, "w") as file:
            file.write(str(score))
    except OSError:
        pass  # some sandboxes let no process change it


def seal(descriptor: int) -> None:
    """Make a memory file immutable, so that every process that maps it sees the same bytes."""
    _add_seals(descriptor, _F_SEALS_ALL)


def seal_size(descriptor: int) -> None:
    """Fix the size of a memory file: truncating a file kills processes that map it by SIGBUS."""
    _add_seals(descriptor, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW)


def _add_seals(descriptor: int, seals: int) -> None:
    try:
        fcntl.fcntl(descriptor, _F_ADD_SEALS, seals)
    except OSError:
        pass  # a temporary file cannot be sealed; no other process has its descriptor


def seals_of(descriptor: int) -> int | None:
    """Return a memory file's seals; None for any other file.

    The kernel answers from the inode alone and waits for nothing, unlike fstat(2), which a file
    system in user space may answer late or never.
    """
    try:
        return fcntl.fcntl(descriptor, _F_GET_SEALS)
    except OSError:
        return None


def has_fixed_size(descriptor: int) -> bool:
    """Return whether the file is a memory file that can no longer be truncated."""
    return bool((seals_of(descriptor) or 0) & _F_SEAL_SHRINK)


def has_memory_files() -> bool:
    """Return whether ``memory_file`` makes files that have seals."""
    descriptor = linux.memory_file("xmp-probe")
    try:
        return seals_of(descriptor) is not None
    finally:
        os.close(descriptor)
