"""Which framework a script uses whose top does not say so, read from source without running it.

A script may import JAX by way of a library (``from flax import nnx``), in its own modules, or
inside a function. The nearest of these places that names a framework decides.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from typing import NamedTuple

from xmp._imports import site_folders

from .top_imports import at_the_top, changes_what_imports_read, find_module, imported_modules

__all__ = ["Uses", "frameworks_used"]

_FRAMEWORKS = ("jax", "torch", "torch_xla", "torch_tpu", "paddle")
_LIBRARIES = {
    **dict.fromkeys(("chex", "equinox", "flax", "haiku", "jaxlib", "jaxtyping"), "jax"),
    **dict.fromkeys(("numpyro", "optax", "orbax"), "jax"),
    **dict.fromkeys(("accelerate", "lightning", "pytorch_lightning", "torchvision"), "torch"),
}
"""Libraries that import nothing but this framework."""
_MOST = 100
"""Modules of the user's own that are read."""


class _Names(NamedTuple):
    """The modules that one file imports, in its order."""

    top: list[str]
    inside: list[str]
    """Those that only functions import."""


class Uses(NamedTuple):
    """What a script uses; nothing where that cannot be read."""

    frameworks: tuple[str, ...] = ()
    late: bool = False
    """It changes a variable that an import reads (``JAX_ENABLE_X64``)."""


def frameworks_used(path: str, folder: str) -> Uses:
    """The frameworks that the script of this folder uses."""
    try:
        tree = _parsed(path)
    except (OSError, SyntaxError, ValueError):
        return Uses()
    nodes = (node for statement in tree.body for node in at_the_top(statement))
    late = any(map(changes_what_imports_read, nodes))
    return Uses(_nearest(_names(tree), folder), late)


def _nearest(script: _Names, folder: str) -> tuple[str, ...]:
    own = [_names(each) for each in _own_modules(script, folder)]
    tops = [name for each in own for name in each.top]
    inside = [name for each in (script, *own) for name in each.inside]
    for names in (script.top, tops, inside):
        found = _frameworks(names)
        if found:
            return found
    return ()


def _frameworks(names: list[str]) -> tuple[str, ...]:
    """Those that are named; if none is, those of the named libraries."""
    roots = list(dict.fromkeys(name.partition(".")[0] for name in names))
    named = [root for root in roots if root in _FRAMEWORKS]
    return tuple(named or dict.fromkeys(_LIBRARIES[root] for root in roots if root in _LIBRARIES))


def _names(tree: ast.Module) -> _Names:
    top = [n for statement in tree.body for node in at_the_top(statement) for n in _of(node)]
    everywhere = [name for node in ast.walk(tree) for name in _of(node)]
    return _Names(top, [name for name in everywhere if name not in top])


def _of(node: ast.AST) -> Iterator[str]:
    """What it imports; of a relative import the name alone, as in the script's own folder."""
    if isinstance(node, ast.ImportFrom) and node.level:
        yield from filter(None, [node.module, *(alias.name for alias in node.names)])
    else:
        yield from imported_modules(node)


def _own_modules(script: _Names, folder: str) -> Iterator[ast.Module]:
    """The modules beside the script that it imports, and that these import."""
    seen: set[str] = set()
    waiting = [*script.top, *script.inside]
    installed = site_folders()
    while waiting and len(seen) < _MOST:
        name = waiting.pop(0)
        spec = find_module(name, [folder]) if name.isascii() else None
        file = spec.origin if spec is not None else None
        if not file or file in seen or not file.endswith(".py") or file.startswith(installed):
            continue
        seen.add(file)
        try:
            tree = _parsed(file)
        except (OSError, SyntaxError, ValueError):
            continue
        yield tree
        found = _names(tree)
        package = name if os.path.basename(file) == "__init__.py" else name.rpartition(".")[0]
        names = [*found.top, *found.inside]
        waiting += [*names, *(f"{package}.{each}" for each in names if package)]


def _parsed(path: str) -> ast.Module:
    with open(path, "rb") as file:
        return ast.parse(file.read(), os.path.abspath(path))
