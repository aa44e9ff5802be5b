"""Gives the program its ``sys.excepthook`` back after a replica has run in its process.

``init_process_group`` replaces it by one that writes the rank before each line, and
``destroy_process_group`` leaves that (torch 2.13, distributed_c10d.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["excepthook_kept"]

_TORCH = "torch.distributed.distributed_c10d"


@contextmanager
def excepthook_kept() -> Iterator[None]:
    """Undo torch's replacement at the end; a hook that the function has set stays."""
    before = sys.excepthook
    try:
        yield
    finally:
        if getattr(sys.excepthook, "__module__", None) == _TORCH:
            sys.excepthook = before
