"""The framework of this process: Paddle, or torch."""

from __future__ import annotations

import os
import sys
from typing import Any

from xmp import _inside
from xmp._words.errors import PlanError

from .runtime import RANK

__all__ = ["paddle_dist", "paddle_runs", "refuse_paddle_on"]


def paddle_runs() -> bool:
    """Return whether Paddle connects the replicas, or would connect them.

    In a replica the runtime decides. Elsewhere Paddle must be loaded; if torch is loaded too,
    Paddle's launcher must have started this process, and torch must have no process group.
    """
    if _inside.is_replica():
        return _inside.replica().runtime == "paddle"
    if "paddle" not in sys.modules:
        return False
    return "torch" not in sys.modules or (RANK in os.environ and not _torch_is_connected())


def refuse_paddle_on(what: str) -> None:
    """Raise PlanError for ``what``, which is Paddle's, in a replica of another runtime."""
    if _inside.is_replica() and not paddle_runs():
        raise PlanError(
            f"{what} is Paddle's, and this launch has runtime {_inside.replica().runtime!r}, which "
            'does not connect Paddle. Launch with runtime="paddle"'
        )


def paddle_dist() -> Any:
    """Import ``paddle.distributed``."""
    import paddle.distributed

    return paddle.distributed


def _torch_is_connected() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())
