"""The check that all replicas wrap the same model in the same way, before anything is reduced.

torch's DistributedDataParallel compares only the shapes of the parameters that it reduces (torch
2.13, ``_verify_param_shape_across_processes``). At other differences it hangs, aborts, or adds up
gradients of different parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product, zip_longest
from typing import Any

from xmp._words.errors import PlanError
from xmp._words.framework import AveragingOptions

__all__ = ["refuse_differences"]

_FIELDS = (
    "bucket_mb", "first_bucket_mb", "find_unused_parameters", "static_graph", "sync_batchnorm",
)  # fmt: skip


def refuse_differences(
    model: Any,
    options: AveragingOptions,
    ranks: Sequence[int],
    all_gather: Callable[[Any], Sequence[Any]],
) -> None:
    """Raise PlanError, on all replicas of ``ranks``, where one differs from the first of them."""
    first, *others = all_gather(_described(model, options))
    for (rank, theirs), kind in product(zip(ranks[1:], others), first):
        pairs = zip_longest(theirs[kind], first[kind], fillvalue=f"no more {kind}")
        for one, other in pairs:
            if one != other:
                raise PlanError(
                    f"replicas differ in what they give to data_parallel: rank {rank} has {one}, "
                    f"rank {ranks[0]} has {other}. Make the same model, with its parts in the same "
                    "order, and pass the same options on every replica"
                )


def _described(model: Any, options: AveragingOptions) -> dict[str, list[str]]:
    """Return each parameter, buffer and option in words."""
    left_out = set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))  # torch 2.13
    return {
        "parameters": [
            _in_words(name, each, "" if each.requires_grad else ", frozen")
            for name, each in model.named_parameters()
            if name not in left_out
        ],
        "buffers": [
            _in_words(name, each) for name, each in model.named_buffers() if name not in left_out
        ],
        "options": [
            *(f"{field}={getattr(options, field)}" for field in _FIELDS),
            f"comm_hook={_name(options.comm_hook)}",
        ],
    }


def _in_words(name: str, tensor: Any, more: str = "") -> str:
    return f"{name} ({tensor.dtype}, shape {list(tensor.shape)}{more})"


def _name(hook: Any) -> str:
    function = hook[0] if isinstance(hook, tuple) else hook
    is_word = function is None or isinstance(function, str)
    return repr(function) if is_word else getattr(function, "__qualname__", type(function).__name__)
