"""Corrects, right after a fork, the rank that libraries took when they were imported.

A process that imports a library before it is forked has no rank, or its launcher's. The library
would let every replica do what is meant for rank 0 alone.
"""

from __future__ import annotations

import sys
from typing import Any

from xmp._words.replica_info import ReplicaInfo

__all__ = ["correct"]

_DECORATORS = (
    # Lightning sets it from RANK or LOCAL_RANK at import, and its Trainer and Fabric later
    # (lightning 2.6, fabric/utilities/rank_zero.py).
    ("lightning_utilities.core.rank_zero", "rank_zero_only", "rank"),
    # torchmetrics from LOCAL_RANK (torchmetrics 1.9, utilities/prints.py).
    ("torchmetrics.utilities.prints", "rank_zero_only", "local_rank"),
)
"""A module, its decorator with an attribute ``rank``, and which of our ranks belongs there."""


def correct(info: ReplicaInfo) -> None:
    """Give the loaded libraries the rank of this replica; import none.

    Those that are imported later read it from the environment.
    """
    for name, decorator, rank in _DECORATORS:
        function: Any = getattr(sys.modules.get(name), decorator, None)
        if hasattr(function, "rank"):
            function.rank = getattr(info, rank)
