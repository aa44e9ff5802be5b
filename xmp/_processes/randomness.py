"""Random streams of replicas: each its own, or one for all when the user gives a seed.

A fork inherits them. Python reseeds ``random`` itself; numpy goes on with the parent's state, and
so does torch, whose default generator is seeded from the system in every fresh process.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from types import ModuleType

from xmp._imports import on_import

__all__ = ["seed_all", "start_own", "watch_torch"]

_at_import: list[int] = []


def watch_torch() -> None:
    """Note the seed with which torch comes up in this process, now or later.

    A seed that is another one when replicas are forked was set by the user's own module, for all
    of them: it is kept.
    """

    def note(torch: ModuleType) -> None:
        _at_import[:] = [torch.initial_seed()]

    on_import("torch", note)


def start_own(seed: int | None, forked: bool) -> None:
    """In a replica, after loading: ``seed`` everything, or leave what a fork brought along."""
    if seed is not None:
        seed_all(seed)
    if seed is not None or not forked:
        return
    if "numpy.random" in sys.modules:
        # Without an argument numpy takes ten times as long to ask the system for the same.
        sys.modules["numpy.random"].seed(list(struct.unpack("8I", os.urandom(32))))
    torch = sys.modules.get("torch")
    if torch is not None and _at_import == [torch.initial_seed()]:
        torch.default_generator.manual_seed(struct.unpack("q", os.urandom(8))[0])


def seed_all(seed: int) -> None:
    """Seed ``random``, and numpy and torch now or when they are imported."""
    random.seed(seed)
    on_import("numpy.random", lambda module: module.seed(seed % 2**32))
    on_import("torch", lambda module: module.manual_seed(seed))
