"""Frameworks for test modules: imported where they are first used, not while pytest collects.

What the launcher has imported, each template imports as well: 1.6 s of processor time for torch, in
every module of tests whose launches need none.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["lazily"]


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
