"""Parameters with ``no_sync = True``: Paddle leaves them out, and torch is made to do the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xmp._words.errors import PlanError

__all__ = ["left_out"]

_IGNORED = "_ddp_params_and_buffers_to_ignore"
"""The attribute of a model with the names that DistributedDataParallel leaves out.

Only its constructor reads it (torch/nn/parallel/distributed.py, 2.13).
"""


@contextmanager
def left_out(model: Any) -> Iterator[None]:
    """Have torch leave out the marked parameters of ``model`` when it is wrapped within this.

    Afterwards the model is as before: a later wrapper, or that of a copy, goes by the marks that
    the parameters have then.

    Raises:
        PlanError: no parameter remains, or torch_xla reduces the gradients.
    """
    names = _names(model)
    before = vars(model).get(_IGNORED)
    if names:
        setattr(model, _IGNORED, [*getattr(model, _IGNORED, ()), *names])
    try:
        yield
    finally:
        if names and before is None:
            delattr(model, _IGNORED)
        elif names:
            setattr(model, _IGNORED, before)


def _names(model: Any) -> list[str]:
    named = list(model.named_parameters(remove_duplicate=False))
    names = [name for name, each in named if getattr(each, "no_sync", False)]
    if not any(each.requires_grad for name, each in named if name not in names):
        raise PlanError(
            "DataParallel: no parameter of the model is to be averaged: none has requires_grad, or "
            "those that do have no_sync = True. Use the model without DataParallel"
        )
    if names and any(each.device.type == "xla" for _, each in named):
        raise PlanError(
            f"DataParallel cannot leave out parameters with no_sync = True ({', '.join(names)}) on "
            "torch_xla: remove the attribute, or average the others by xmp.all_reduce"
        )
    # torch looks for parameters of the root module with a dot before the name in one place, and
    # without it in others (_build_params_for_reducer; __init__).
    return [*names, *(f".{name}" for name in names if "." not in name)]
