"""Paddle's launcher on top of xmp: ``import xmp.compat.paddle as dist`` in place of Paddle's.

Names, signatures and defaults are those of Paddle 3.3 (``paddle.distributed``).
"""

from __future__ import annotations

from ._spawn import MultiprocessContext, spawn

__all__ = ["MultiprocessContext", "spawn"]
