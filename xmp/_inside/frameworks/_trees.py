"""Trees of values: take the leaves out, or rebuild a tree with other leaves.

A tree is a dict, list or tuple (named ones and subclasses too) of trees; everything else is a leaf.
The order of the leaves depends on the keys alone and not on the order of insertion: two replicas
that filled the same dict in another order still reduce the same entries together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["leaves", "rebuild"]


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of ``tree``, depth first."""
    if isinstance(tree, dict):
        return [leaf for key in _order(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def rebuild(tree: Any, values: Iterable[Any]) -> Any:
    """Return a tree of the same shape and types as ``tree`` whose leaves are ``values``."""
    return _fill(tree, iter(values))


def _order(tree: dict[Any, Any]) -> list[Any]:
    return sorted(tree, key=lambda key: (type(key).__name__, repr(key)))


def _fill(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, dict):
        filled = copy.copy(tree)  # keeps the order, the type and a defaultdict's factory
        for key in _order(tree):
            filled[key] = _fill(tree[key], values)
        return filled
    if isinstance(tree, (list, tuple)):
        items = [_fill(item, values) for item in tree]
        if isinstance(tree, list):
            return items
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return next(values)
