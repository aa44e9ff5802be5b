"""Finds the framework that a script uses, from its source alone, where its top does not name one.

A script may import JAX by way of a library (``from flax import nnx``), in its own modules, or
inside a function. The nearest of these places that names a framework decides.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xmp._os.imports import is_no_package_of_others, site_folders

from .top_imports import (
    MOST,
    at_the_top,
    changes_what_imports_read,
    find_module,
    imported_modules,
    parsed,
    runs_later,
)

__all__ = ["Uses", "frameworks_used"]

_FRAMEWORKS = ("jax", "torch", "torch_xla", "torch_tpu", "paddle")
_LIBRARIES = {
    **dict.fromkeys(("chex", "equinox", "flax", "haiku", "jaxlib", "jaxtyping"), "jax"),
    **dict.fromkeys(("numpyro", "optax", "orbax"), "jax"),
    **dict.fromkeys(("accelerate", "lightning", "pytorch_lightning", "torchvision"), "torch"),
}
"""Libraries that import nothing but this framework."""
_FILES = 100
"""The most modules of the user's own that are read."""
_BYTES = 1 << 20
"""The most bytes of all of them: half a second of work where they are tables of numbers, less
otherwise."""
_BODIES = (ast.stmt, ast.excepthandler, ast.match_case)
_NAMES = 5000
"""The most imports that are looked up."""


class _Names(NamedTuple):
    """The modules that one file imports, in its order."""

    top: list[str]
    inside: list[str]
    """The modules that only functions import."""


class Uses(NamedTuple):
    """What a script uses; empty where it cannot be read."""

    frameworks: tuple[str, ...] = ()
    late: bool = False
    """Whether it changes a variable that an import reads (``JAX_ENABLE_X64``)."""


def frameworks_used(path: str, folder: str, package: str = "", source: bytes | None = None) -> Uses:
    """Return the frameworks that a script of this folder uses, of this package under ``-m``."""
    try:
        tree = parsed(path, source=source)
        late = any(map(changes_what_imports_read, at_the_top(tree)))
        return Uses(_nearest(_names(tree, package), folder, package), late)
    except Exception:  # the text is the user's: a launch must not fail because of it
        return Uses()


def _nearest(script: _Names, folder: str, package: str) -> tuple[str, ...]:
    own = [*_own_modules(script, folder, package)]
    tops = [name for each in own for name in each.top]
    inside = [name for each in (script, *own) for name in each.inside]
    for names in (script.top, tops, inside):
        found = _frameworks(names, folder)
        if found:
            return found
    return ()


def _frameworks(names: list[str], folder: str) -> tuple[str, ...]:
    """Return the frameworks among these names; if there are none, those of the named libraries."""
    roots = list(dict.fromkeys(name.partition(".")[0] for name in names))
    known = [r for r in roots if r in (*_FRAMEWORKS, *_LIBRARIES) and not _is_own(r, folder)]
    named = [root for root in known if root in _FRAMEWORKS]
    return tuple(named or dict.fromkeys(_LIBRARIES[root] for root in known))


def _is_own(root: str, folder: str) -> bool:
    """Return whether the program has its own module of this name: a ``jax.py`` by the script."""
    spec = find_module(root, [folder])
    return spec is not None and is_no_package_of_others(spec.origin)


def _names(tree: ast.Module, package: str) -> _Names:
    top: dict[str, None] = {}
    inside: dict[str, None] = {}
    waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
    while waiting:
        node, now = waiting.pop()
        (top if now else inside).update(dict.fromkeys(_of(node, package)))
        now = now and not runs_later(node)
        # Imports are statements: the expressions, most of a tree, are left alone.
        children = [each for each in ast.iter_child_nodes(node) if isinstance(each, _BODIES)]
        waiting += [(child, now) for child in reversed(children)]
    return _Names([*top], [name for name in inside if name not in top])


def _of(node: ast.AST, package: str) -> Iterable[str]:
    """Return what a node imports, relative imports by their whole names."""
    if not isinstance(node, ast.ImportFrom) or not node.level:
        return imported_modules(node)
    parts = package.split(".")
    base = ".".join(filter(None, [*parts[: len(parts) + 1 - node.level], node.module]))
    names = [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
    return [base, *names] if base else names


def _own_modules(script: _Names, folder: str, package: str) -> Iterator[_Names]:
    """Yield what the user's modules import that the script imports directly or by way of others."""
    waiting = [package, *script.top, *script.inside]
    names: set[str] = set()
    files: set[str] = set()
    installed, left = site_folders(), _BYTES
    for name in waiting:  # it grows
        for each in _with_parents(name) if len(names) < _NAMES and len(files) < _FILES else ():
            spec = find_module(each, [folder]) if each not in names else None
            names.add(each)
            file = (spec.origin if spec is not None else None) or ""
            if file in files or not file.endswith(".py") or file.startswith(installed):
                continue
            files.add(file)
            inner = each if os.path.basename(file) == "__init__.py" else each.rpartition(".")[0]
            found, size = _read(file, inner, min(left, MOST // 2))
            left -= size
            yield found
            waiting += [*found.top, *found.inside]


def _with_parents(name: str) -> Iterator[str]:
    """Return ``a``, ``a.b``, ``a.b.c`` for the last: an import of it runs the others first."""
    parts = name.split(".") if name else []
    return (".".join(parts[: count + 1]) for count in range(len(parts)))


def _read(file: str, package: str, most: int) -> tuple[_Names, int]:
    """Return what a file imports, and how many bytes it has; nothing where it cannot be read."""
    try:
        tree, size = parsed(file, most), 0
        if tree.body:
            size = os.path.getsize(file) if os.path.isfile(file) else most
        return _names(tree, package), size
    except Exception:  # as for the script
        return _Names([], []), 0
