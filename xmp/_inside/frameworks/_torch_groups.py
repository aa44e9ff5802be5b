"""Keeps the process groups that a replica destroyed last, until the replica ends.

The destructor of torch's gloo group joins its threads while it holds the interpreter lock. A thread
that has just finished an all-reduce of DDP needs that lock to release what it holds, so a function
that trains with DDP, destroys its group and returns may hang for ever (torch 2.13,
ProcessGroupGloo::~ProcessGroupGloo and runLoop). A replica ends by ``os._exit``: the destructors of
the last groups never run, and those of earlier ones run when their threads have long been idle.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from xmp._os.imports import on_import

__all__ = ["LastGroups"]

_MODULES = ("torch.distributed", "torch.distributed.distributed_c10d")
_FUNCTION = "destroy_process_group"


class LastGroups:
    """Replaces torch's ``destroy_process_group`` from ``install`` to ``remove``."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._withdraw: Callable[[], None] = lambda: None
        self._original: Callable[..., None] | None = None

    def install(self) -> None:
        """Patch torch now, or when it is imported."""
        self._withdraw = on_import(_MODULES[0], self._patch)

    def remove(self) -> None:
        """Restore torch's own function; the kept groups stay."""
        self._withdraw()
        self._withdraw = lambda: None  # the hook refers to this object
        if self._original is not None:
            _put(self._original)
            self._original = None

    def _patch(self, module: ModuleType) -> None:
        original = getattr(module, _FUNCTION, None)
        if original is None:  # a build without torch.distributed
            return
        self._original = original

        @functools.wraps(original)
        def destroy(*args: Any, **kwargs: Any) -> None:
            doomed = list(sys.modules[_MODULES[1]]._world.pg_map)
            original(*args, **kwargs)
            self._kept = doomed

        _put(destroy)


def _put(function: Callable[..., None]) -> None:
    for name in _MODULES:
        setattr(sys.modules[name], _FUNCTION, function)
