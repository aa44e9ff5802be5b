"""Whether this process may still be forked, and if not, the names of what makes a fork unsafe.

Which device files and drivers count is data from the plan (``ForkRules``).
"""

from __future__ import annotations

import ctypes
import fnmatch
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable

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
"""What an import of the template, of which this process is a fork, has started: a fork has its
module, but not its thread, and shares its connection."""


def note_imports() -> None:
    """In a template that has imported everything, before its first fork."""
    left_in_template[:] = [f"{what}, started by an import" for what in culprits(ForkRules())]


def culprits(
    rules: ForkRules, known_sockets: Iterable[str] = (), python_threads: bool = False
) -> list[str]:
    """What makes a fork unsafe now, one phrase each; empty when it is safe.

    ``python_threads=True`` allows threads that Python started (they are only noted).
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
    """One phrase for all threads of one name: a device runtime may have hundreds."""
    counted = Counter(threads).most_common()
    return [f"thread {name}" if n == 1 else f"{n} threads {name}" for name, n in counted]


def _lasting_threads() -> list[str]:
    """The native threads; the kernel counts Python's before it is known and after its join()."""
    end = time.monotonic() + _SETTLE
    while (found := native_threads(True)) and time.monotonic() < end:
        time.sleep(0.002)  # without the interpreter's lock, which such a thread waits for
    return found


def native_threads(allow_python: bool = False) -> list[str]:
    """The names of the threads beside this one that the kernel counts."""
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
            names.append(_named(command, task))
    return names


def _module_of(task: str) -> str:
    from .thread_owner import python_module_of  # rare: most launches have no such thread

    return python_module_of(task)


def _named(name: str, task: str) -> str:
    from .thread_owner import library_of  # rare: most launches have no such thread

    library = library_of(task)
    # A thread that was given no name has that of its process, which says nothing.
    if name in ("", proc.text("/proc/self/comm")):
        return f"of {library} (native)" if library else _NAMELESS
    return f"{name!r} of {library} (native)" if library else f"{name!r} (native)"


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
    """The connected internet sockets of this process, by the kernel's name for them."""
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
    """Takes over the descriptor; another thread may have put a file of another kind there."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
