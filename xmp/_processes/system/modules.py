"""The modules that this process has loaded: those of installed packages, and new ones."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Collection, Iterable

from xmp._os.imports import site_folders

__all__ = ["installed", "modules_since", "third_party"]

_known: tuple[int, tuple[str, ...]] = (-1, ())
"""The number of modules at the last look, and the installed ones among them."""


def installed(names: Iterable[str]) -> list[str]:
    """Return the loaded modules that are neither the standard library's nor the user's own.

    Modules of the standard library are imported along with these; the user's files may do anything
    when they are imported.
    """
    names = list(names)
    places = site_folders() if names else ()
    found = [name for name in names if _installed(name, places)]
    folders = {*places, *(folder + os.sep for folder in sys.path)}
    vendored = {root for root in {*map(_root, found)} if _is_vendored(root, folders)}
    return [name for name in found if _root(name) not in vendored]


def third_party() -> tuple[str, ...]:
    """Return the installed modules that are loaded here, in the order of their import."""
    global _known
    if _known[0] != len(sys.modules):
        _known = (len(sys.modules), tuple(installed(sys.modules)))
    return _known[1]


def _installed(name: str, places: tuple[str, ...]) -> bool:
    try:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        origin = getattr(spec, "origin", None)
    except Exception:  # the entry may be any object, which may import something at each access
        return False
    # A module whose spec has another name is an alias, or was made by hand.
    if not isinstance(origin, str) or getattr(spec, "name", None) != name:
        return False
    return origin.startswith(places) and _root(name) not in ("xmp", "pytest", "_pytest")


def _is_vendored(root: str, folders: Collection[str]) -> bool:
    """Return whether the package lies where no other process would look for it.

    An example is a package within another one, which has imported it by a search path of its own:
    debugpy does so with pydevd_plugins (debugpy 1.8, debugpy/_vendored/force_pydevd.py), of which
    omegaconf installs another copy.
    """
    module = sys.modules.get(root)
    paths = [str(path) for path in getattr(module, "__path__", None) or ()]
    place = paths[0] if paths else str(getattr(module, "__file__", None) or "")
    return bool(place) and os.path.dirname(place) + os.sep not in folders


def _root(name: str) -> str:
    return name.partition(".")[0]


def modules_since(count: int) -> list[str]:
    """Return the modules that were imported after the first ``count``.

    They are read from the end: walking over all of them would write into the reference count of
    every name, and in a forked process unshare the pages of half the heap.
    """
    return list(itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - count)))[::-1]
