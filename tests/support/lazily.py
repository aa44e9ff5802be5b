"""Frameworks for test modules: imported where they are first used, not while pytest collects.

What the launcher has imported, each template imports as well: 1.6 s of processor time for torch, in
every module of tests whose launches need none.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import Any

__all__ = ["frameworks_of", "lazily"]

_FRAMEWORKS = tuple(
    re.compile(rf"\b(import|from|lazily\(\") ?({names})\b")
    for names in ("jax", r"torch(_xla|_tpu)?|lightning|accelerate|paddle")
)


@functools.cache
def frameworks_of(module: Path) -> int:
    """Return 0 for a module that imports none, 1 for torch and what is built on it, 2 for JAX."""
    text = module.read_text()
    return next((2 - n for n, each in enumerate(_FRAMEWORKS) if each.search(text)), 0)


def lazily(name: str) -> Any:
    """Return a stand-in for a module, which is imported when an attribute of it is used."""
    return _Stands(name)


class _Stands:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pickle, inspect and pytest ask every object for some
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)

    def __reduce__(self) -> Any:
        return lazily, (self._name,)
