"""Imports of a process that is forked later, and the preparation of its heap for sharing."""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Iterable

from xmp._os import proc
from xmp._os.imports import without_collections
from xmp._processes.system import finalisation, linux, thread_pools
from xmp._processes.system.variables_read import VariablesRead

__all__ = ["files_of", "import_all", "settle", "variables_read"]

variables_read = VariablesRead()
"""The variables read by all imports of this process and, in a script holder, of its template."""


def import_all(modules: Iterable[str]) -> tuple[dict[str, str], list[tuple[str, float]]]:
    """Import modules. Return why some could not be imported, and which three took longest.

    Raises RuntimeError if one has moved this process's children to another pid namespace: the
    launcher would take the pids that they report for those of other processes.
    """
    failed, took = {}, []
    with without_collections(), variables_read.noted():
        for name in modules:
            if name in sys.modules:
                continue
            start = time.perf_counter()
            try:
                importlib.import_module(name)
            except BaseException as error:
                failed[name] = f"{type(error).__name__}: {error}"
            took.append((name, time.perf_counter() - start))
    finalisation.before_fork()
    if why := proc.refusal():
        raise RuntimeError(why)
    took.sort(key=lambda item: -item[1])
    return failed, took[:3]


def files_of(modules: Iterable[str]) -> dict[str, str]:
    """Return the files of those modules that are loaded; "" for a module without a file."""
    loaded = {name: sys.modules[name] for name in modules if name in sys.modules}
    return {name: str(getattr(m, "__file__", None) or "") for name, m in loaded.items()}


def settle() -> None:
    """Bring the heap into the state in which forks share most of it."""
    thread_pools.pause()
    for entry, finder in list(sys.path_importer_cache.items()):
        if finder is None:  # a folder that does not exist now may exist at the next launch
            del sys.path_importer_cache[entry]
    # A collection in a child would write into every object's header and unshare its page.
    gc.collect()
    gc.freeze()
    linux.tidy_heap()
