"""Native thread pools (OpenMP, OpenBLAS, MKL, torch): put down before a fork, sized after it.

A pool that was up in the parent deadlocks every forked child of libgomp; OpenBLAS ends its own
pool at a fork. So pools are asked to go (``omp_pause_resource_all``) and come back when used.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import sys
from collections.abc import Callable

from . import kernel

__all__ = [
    "mapped_libraries",
    "modules_since",
    "one_thread_environment",
    "pause",
    "pause_by_fork",
    "set_threads",
]

_OPENMP = re.compile(r"/lib(gomp|omp|iomp5)[-.]")
_SETTERS = (
    (re.compile(r"openblas"), ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_",
                               "scipy_openblas_set_num_threads", "openblas_set_num_threads")),
    (re.compile(r"/libmkl_rt[.]"), ("MKL_Set_Num_Threads",)),
)  # fmt: skip
_HARD = 2  # omp_pause_hard: the only kind that ends libgomp's threads
_counted = 0
_libraries: list[str] = []


def mapped_libraries() -> list[str]:
    """The files of all libraries that are mapped here.

    Reading the maps takes milliseconds: only after an extension module has been imported. What
    was loaded in another way and has started threads is seen as threads.
    """
    global _counted
    fresh = modules_since(_counted)
    if not _libraries or any(_is_extension(name) for name in fresh):
        _libraries[:] = _read_maps()
    _counted = len(sys.modules)
    return _libraries


def modules_since(count: int) -> list[str]:
    """The modules that were imported after the first ``count``.

    From the end: to walk over all of them would write into the reference count of every name,
    and in a forked process unshare the pages of half the heap.
    """
    return list(itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - count)))[::-1]


def _is_extension(name: str) -> bool:
    return str(getattr(sys.modules.get(name), "__file__", "")).endswith((".so", ".dylib"))


def _read_maps() -> list[str]:
    found: dict[str, None] = {}
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                place = line.find("/")
                if place > 0 and ".so" in line:
                    found[line[place:].rstrip()] = None
    except OSError:
        pass
    return list(found)


def _functions(pattern: re.Pattern[str], names: tuple[str, ...]) -> list[Callable[[int], int]]:
    found: list[Callable[[int], int]] = []
    for path in mapped_libraries():
        if not pattern.search(path):
            continue
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
        for name in names:
            if hasattr(library, name):
                found.append(getattr(library, name))
                break
    return found


def pause() -> None:
    """End the threads of every loaded OpenMP runtime; they start again when needed."""
    for function in _functions(_OPENMP, ("omp_pause_resource_all",)):
        function(_HARD)


def pause_by_fork() -> None:
    """End the pools that end themselves before any fork (OpenBLAS does so in the parent too)."""
    child = kernel.fork_quietly()
    if child == 0:
        os._exit(0)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass  # somebody ignores SIGCHLD: the kernel has reaped it


def set_threads(count: int) -> None:
    """Size every loaded pool to ``count`` threads."""
    for pattern, names in _SETTERS:
        for function in _functions(pattern, names):
            function(count)
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != count:
        torch.set_num_threads(count)
    elif torch is None:
        for function in _functions(_OPENMP, ("omp_set_num_threads",)):
            function(count)


def one_thread_environment() -> dict[str, str]:
    """Variables that make every pool load with one thread."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return dict.fromkeys(names, "1")
