"""Finds what another process can find by name: in a module that it can import, or in the script.

A decorator gives the name of a function to its wrapper, which has the function as ``__wrapped__``
(functools.wraps).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

import cloudpickle

__all__ = ["found_in", "importable", "of_pytest", "unwrapped", "wrapped_in"]

_SCRIPT = ("__main__", "__mp_main__")
_DEEPEST = 20  # decorators above each other


def found_in(module: types.ModuleType, obj: Any, names: frozenset[str] | None) -> bool:
    """Return whether ``module`` has the object under its qualified name, here and imported again.

    ``names`` are what an import of it finds; None where that is all that it has here.
    """
    return obj.__module__ in _SCRIPT and _named(module, obj.__qualname__, names) is obj


def wrapped_in(
    obj: Any, main: types.ModuleType | None, names: frozenset[str] | None
) -> tuple[types.FunctionType, int] | None:
    """Return the wrapper that another process finds under a function's name, and how deep it is.

    The depth counts the decorators between. None if there is no such wrapper. ``main`` is the
    script, if what it defines travels by reference.
    """
    if not isinstance(obj, types.FunctionType):
        return None
    in_script = obj.__module__ in _SCRIPT
    module = main if in_script else sys.modules.get(obj.__module__ or "")
    if module is None:
        return None
    found = _named(module, obj.__qualname__, names if in_script else None)
    if found is obj or not isinstance(found, types.FunctionType):
        return None
    if (found.__module__, found.__qualname__) != (obj.__module__, obj.__qualname__):
        return None  # the wrapper has a name of its own
    if not in_script and not _by_reference(module):
        return None
    inner: Any = found
    for depth in range(_DEEPEST):
        if inner is obj:
            return found, depth
        inner = getattr(inner, "__wrapped__", None)
    return None


def unwrapped(wrapper: Any, depth: int) -> Any:
    """Return the function that ``wrapper`` wraps, ``depth`` decorators below."""
    for _ in range(depth):
        wrapper = getattr(wrapper, "__wrapped__", wrapper)
    return wrapper


def _named(module: types.ModuleType, name: str, names: frozenset[str] | None) -> Any:
    """Return what the module has under this qualified name, if an import finds it; else None."""
    if "<" in name or (names is not None and name.partition(".")[0] not in names):
        return None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _by_reference(module: types.ModuleType) -> bool:
    """Return whether cloudpickle sends what is in the module by reference."""
    if not importable(module):
        return False
    registered = cloudpickle.list_registry_pickle_by_value()
    parts = module.__name__.split(".")
    return not any(".".join(parts[: end + 1]) in registered for end in range(len(parts)))


def of_pytest(module: Any) -> bool:
    if not isinstance(module, types.ModuleType):
        return False
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if type(loader).__module__ != "_pytest.assertion.rewrite":
        return False
    # pytest's hook also loads plug-ins, which are installed and importable.
    return "site-packages" not in (getattr(module, "__file__", None) or "")


def importable(module: types.ModuleType) -> bool:
    """Return whether another process with this ``sys.path`` finds the same file by this name."""
    name = module.__name__
    if name in ("__main__", "__mp_main__", "builtins"):
        return True
    if not of_pytest(module):
        try:
            return importlib.util.find_spec(name) is not None
        except (ImportError, ValueError, AttributeError):
            return False
    parent = sys.modules.get(name.rpartition(".")[0])
    path = getattr(parent, "__path__", None)
    if "." in name and path is None:
        return False
    found = (_origin(finder, name, path) for finder in sys.meta_path)
    first = next(filter(None, found), "")
    return first != "" and os.path.realpath(first) == os.path.realpath(module.__file__ or "")


def _origin(finder: Any, name: str, path: Any) -> str:
    """Return the file that a finder has for a module; "" for pytest's, which works only here."""
    if type(finder).__module__ == "_pytest.assertion.rewrite":
        return ""
    try:
        spec = finder.find_spec(name, path)
    except (ImportError, ValueError, AttributeError):
        return ""
    return (spec.origin or "") if spec is not None else ""
