"""Native thread pools (OpenMP, OpenBLAS, MKL, torch): ended before a fork, sized after it.

A child that is forked while libgomp's pool is up deadlocks in it (gcc bug 58378), so OpenMP's pools
are ended by ``omp_pause_resource_all`` (OpenMP 5.0); they start again when used. OpenBLAS ends its
own pool at a fork.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable

from xmp._os import proc
from xmp._os.imports import loaded_framework

from . import linux
from .modules import modules_since

__all__ = ["loaded_library", "one_thread_environment", "pause", "pause_by_fork", "set_threads"]

_OPENMP = re.compile(r"/lib(gomp|omp|iomp5)[-.]")
_SETTERS = (
    (re.compile(r"openblas"), ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_",
                               "scipy_openblas_set_num_threads", "openblas_set_num_threads")),
    (re.compile(r"/libmkl_rt[.]"), ("MKL_Set_Num_Threads",)),
)  # fmt: skip
_HARD = 2  # omp_pause_hard: the only kind that ends libgomp's threads
_counted = 0
_libraries: list[str] = []


def _mapped_libraries() -> list[str]:
    """Return the files of all libraries that are mapped here.

    Reading the maps takes milliseconds, so they are read again only after the import of an
    extension module. The pool of a library that was loaded in another way still shows as threads.
    """
    global _counted
    if not _libraries or any(map(_is_extension, modules_since(_counted))):
        lines = proc.text("/proc/self/maps").splitlines()
        found = [line[line.find("/") :] for line in lines if ".so" in line and "/" in line]
        _libraries[:] = dict.fromkeys(found)
    _counted = len(sys.modules)
    return _libraries


def _is_extension(name: str) -> bool:
    return str(getattr(sys.modules.get(name), "__file__", "")).endswith((".so", ".dylib"))


def _functions(pattern: re.Pattern[str], names: tuple[str, ...]) -> list[Callable[[int], int]]:
    found: list[Callable[[int], int]] = []
    for library in map(loaded_library, filter(pattern.search, _mapped_libraries())):
        known = [name for name in names if hasattr(library, name)]
        found += [getattr(library, name) for name in known[:1]]
    return found


def loaded_library(name: str) -> ctypes.CDLL | None:
    """Return the library if this process has loaded it already, else None; never load it."""
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (OSError, AttributeError):
        return None


def pause() -> None:
    """End the threads of every loaded OpenMP runtime; they start again when needed."""
    for function in _functions(_OPENMP, ("omp_pause_resource_all",)):
        function(_HARD)


def pause_by_fork() -> None:
    """End by a fork the pools that end themselves before any (OpenBLAS's, also in the parent)."""
    child = linux.fork_quietly()
    if child == 0:
        os._exit(0)
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass  # this process ignores SIGCHLD: the kernel has reaped it (wait(2))


def set_threads(count: int) -> None:
    """Size every loaded pool to ``count`` threads."""
    for pattern, names in _SETTERS:
        for function in _functions(pattern, names):
            function(count)
    torch = loaded_framework("torch")
    if torch is None:
        for function in _functions(_OPENMP, ("omp_set_num_threads",)):
            function(count)
    elif torch.get_num_threads() != count:
        torch.set_num_threads(count)


def one_thread_environment() -> dict[str, str]:
    """Return variables that make every pool load with one thread."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return dict.fromkeys(names, "1")
