"""Finds out whether this process may still be forked, and names what makes a fork unsafe.

The device files and drivers that count are data from the plan (``ForkRules``).
"""

from __future__ import annotations

import ctypes
import fnmatch
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from xmp._os import proc
from xmp._words.types import ForkRules

from . import thread_pools

__all__ = ["connected_sockets", "culprits", "left_in_template", "native_threads", "note_imports"]

_SETTLE = 0.25  # seconds in which Python and the kernel agree on the threads that Python started
# jemalloc's own thread, which pyarrow starts (and pandas imports pyarrow): it holds nothing across
# a fork, and the child goes on without it (jemalloc 5, src/background_thread.c, `postfork_child`).
_SAFE_TO_LEAVE = "jemalloc_bg_thd"
# The server of torch's TCPStore waits in an epoll loop that no fork uses; torch's elastic agent has
# one when it forks its workers (torch 2.13, csrc/distributed/c10d/TCPStoreLibUvBackend.cpp).
_SAFE_IN_A_LAUNCHER = "pt_tcpstore_uv"
_NAMELESS = "of a native library (or of faulthandler.dump_traceback_later)"


left_in_template: list[str] = []
"""Threads and connections that an import of the template has started, of which this process is a
fork: a fork has the module, but not its thread, and shares its connection."""


def note_imports() -> None:
    """Note what makes forks unsafe, in a template after its imports, before its first fork."""
    left_in_template[:] = [f"{what}, started by an import" for what in culprits(ForkRules())]


def culprits(
    rules: ForkRules, known_sockets: Iterable[str] = (), python_threads: bool = False
) -> list[str]:
    """Return a phrase for each thing that makes a fork unsafe now; [] if a fork is safe.

    ``known_sockets`` are connections that were there before and do not count.
    ``python_threads=True`` allows threads that Python started.
    """
    thread_pools.pause()
    if native_threads(python_threads):
        thread_pools.pause_by_fork()
    found = _folded(_lasting_threads() if python_threads else native_threads())
    held = _descriptor_targets()
    for path in sorted(set(held.values())):
        if any(fnmatch.fnmatch(path, pattern) for pattern in rules.device_files):
            found.append(f"open device file {path}")
    found += _initialised_drivers(rules)
    if proc.sends_children_away():
        found.append("new processes go to another pid namespace")
    known = set(known_sockets)
    found += [f"connection to {peer}" for ino, peer in _peers(held).items() if ino not in known]
    return found


def _folded(threads: list[str]) -> list[str]:
    """Return one phrase for all threads of one name: a device runtime may have hundreds."""
    counted = Counter(threads).most_common()
    return [f"thread {name}" if n == 1 else f"{n} threads {name}" for name, n in counted]


def _lasting_threads() -> list[str]:
    """Return the native threads, after a short wait for Python's.

    The kernel counts a thread of Python's before Python knows it and after its join().
    """
    end = time.monotonic() + _SETTLE
    while (found := native_threads(True)) and time.monotonic() < end:
        time.sleep(0.002)  # releases the interpreter's lock, for which such a thread waits
    return found


def native_threads(allow_python: bool = False) -> list[str]:
    """Return the names of the kernel's threads of this process, without this one."""
    own = threading.get_native_id()
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    safe = {_SAFE_TO_LEAVE, _SAFE_IN_A_LAUNCHER if allow_python else _SAFE_TO_LEAVE}
    names = []
    for task in _listing("/proc/self/task"):
        number = int(task)
        if number == own or (allow_python and number in python):
            continue
        if number in python:
            names.append(repr(python[number]))
        elif (command := proc.text(f"/proc/self/task/{task}/comm")) in safe:
            continue
        elif module := _module_of(task):
            names += [] if allow_python else [f"of {module}"]
        else:
            # A thread without a name of its own has its process's name, which says nothing.
            nameless = command in ("", proc.text("/proc/self/comm"))
            names.append(_NAMELESS if nameless else f"{command!r} (native)")
    return names


def _module_of(task: str) -> str:
    """Return the module with whose function a thread of Python's began; "" for other threads.

    Threads of the module ``_thread`` are not in ``threading``'s list, but have frames. Their
    identifiers are pthread_t, which glibc keeps in the mapping of the thread's stack
    (nptl/allocatestack.c). A thread that waits in a system call has its stack pointer in
    ``/proc/self/task/<id>/syscall`` (proc(5)).
    """
    fields = proc.text(f"/proc/self/task/{task}/syscall").split()
    if len(fields) < 3:
        return ""
    pointer = int(fields[-2], 16)
    stack = next((each for each in _mappings() if each.start <= pointer < each.stop), range(0))
    for identifier, frame in sys._current_frames().items():
        if identifier in stack:
            while frame.f_back is not None:
                frame = frame.f_back
            return str(frame.f_globals.get("__name__", ""))
    return ""


def _mappings() -> Iterator[range]:
    """Yield the addresses of each mapping of this process."""
    for line in proc.text("/proc/self/maps").splitlines():
        start, _, end = line.partition(" ")[0].partition("-")
        yield range(int(start, 16), int(end, 16))


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _descriptor_targets() -> dict[int, str]:
    targets = {}
    for name in _listing("/proc/self/fd"):
        try:
            targets[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return targets


def _initialised_drivers(rules: ForkRules) -> list[str]:
    found = []
    for part, function, untouched in rules.driver_probes:
        library, count = thread_pools.loaded_library(part), ctypes.c_int(0)
        if library is not None and getattr(library, function)(ctypes.byref(count)) != untouched:
            found.append(f"driver {part} (initialised)")
    return found


def connected_sockets() -> set[str]:
    """Return the connected internet sockets of this process, by the kernel's names for them."""
    return set(_peers(_descriptor_targets()))


def _peers(targets: dict[int, str]) -> dict[str, str]:
    found = {}
    for descriptor, target in targets.items():
        if not target.startswith("socket:"):
            continue
        try:
            with _as_socket(os.dup(descriptor)) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    peer = copy.getpeername()
                    found[target] = f"{peer[0]}:{peer[1]}"
        except OSError:
            continue
    return found


def _as_socket(descriptor: int) -> socket.socket:
    """Wrap the descriptor and take it over; by another thread's doing it may be no socket now."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
