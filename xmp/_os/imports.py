"""Hooks that run when a module is imported, and imports without garbage collections.

A replica that does not use torch must not pay for importing it, and one that does must find it
prepared. So xmp changes a library only when the import system loads it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from . import signals

__all__ = [
    "imported", "is_no_package_of_others", "is_the_programs_own", "loaded_framework", "on_import",
    "site_folders", "why_missing", "without_collections",
]  # fmt: skip

ImportHook = Callable[[ModuleType], None]


def on_import(name: str, hook: ImportHook) -> Callable[[], None]:
    """Call ``hook(module)`` right after module ``name`` has run: now, if it is loaded already.

    Returns a function that removes the hook; it does nothing once the hook has been called.
    """
    if name in sys.modules:
        hook(sys.modules[name])
        return lambda: None
    finder = _HookFinder(name, hook)
    sys.meta_path.insert(0, finder)
    return finder.withdraw


def imported(name: str) -> Any:
    """Return the module; import it where the program has come to its first use.

    What a signal handler raises meanwhile is raised, unchanged, after the import: see ``public``.
    """
    if name in sys.modules:
        return importlib.import_module(name)
    with signals.deferred():
        return importlib.import_module(name)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Turn the garbage collector off within the block: what an import makes stays in use.

    Collections find nothing then. They are 14 % of the time of ``import torch``; one collection
    afterwards takes 36 ms.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def site_folders() -> tuple[str, ...]:
    """Return the folders of installed packages, each with a separator at its end."""
    import sysconfig  # 2 ms, which `import xmp` need not take

    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    site = sys.modules.get("site")
    if site is not None:
        folders |= set(site.getsitepackages()) | {site.getusersitepackages()}
    return tuple(folder + os.sep for folder in folders)


def is_no_package_of_others(origin: str | None) -> bool:
    """Return whether a module named like a framework is the user's own file, such as ``jax.py``.

    A checkout of the framework is not: those of torch, torch_xla, JAX and Paddle have a module or
    package ``version``.
    """
    folder, name = os.path.split(origin or "")
    versions = (os.path.join(folder, each) for each in ("version.py", "version"))
    if name == "__init__.py" and any(map(os.path.exists, versions)):
        return False
    return bool(origin) and not str(origin).startswith(site_folders())


def is_the_programs_own(name: str) -> bool:
    """Return whether the program has a module of this name that hides the installed one."""
    try:
        module = sys.modules.get(name)
        spec = PathFinder.find_spec(name) if module is None else None
        return _hides(name, spec.origin if spec is not None else getattr(module, "__file__", None))
    except Exception:  # what finders of other packages raise
        return False


def loaded_framework(name: str) -> Any:
    """Return the framework if it is loaded; None if not, or if a module of the user's hides it."""
    module = sys.modules.get(name)
    return None if module is None or is_the_programs_own(name) else module


def why_missing(name: str, package: str, error: ImportError) -> str:
    """Return why a replica cannot import a framework, and what to do; ``package`` is for pip."""
    hiding = getattr(sys.modules.get(name), "__file__", None)
    if is_the_programs_own(name) and hiding:
        return f"and the program has imported {hiding} in its place: rename that"
    return f"which cannot be imported ({error}); install it (pip install {package})"


@functools.lru_cache(maxsize=64)
def _hides(name: str, origin: str | None) -> bool:
    installed = is_no_package_of_others(origin) and PathFinder.find_spec(name, [*site_folders()])
    return bool(installed)


class _HookFinder:
    """A finder that finds nothing itself: it adds the hook to what the other finders find."""

    def __init__(self, name: str, hook: ImportHook) -> None:
        self._name = name
        self._hook = hook

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        self.withdraw()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, run = spec.loader, spec.loader.exec_module

            def run_and_call(module: ModuleType) -> None:
                # The module keeps its loader, which must not keep the hook and all that it holds.
                loader.exec_module = run  # type: ignore[method-assign]
                run(module)
                self._hook(module)

            loader.exec_module = run_and_call  # type: ignore[method-assign]
        return spec
