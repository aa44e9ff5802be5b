"""The communication hooks that ``data_parallel(comm_hook=…)`` takes: names, torch's own, pairs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from xmp._words.errors import PlanError

from ._torch_models import names_of

__all__ = ["check_hook", "hook_and_state"]

_NAMES = ("bf16", "fp16", "powersgd")


def check_hook(hook: Any, model: Any) -> None:
    """Refuse what is not a hook, or does not fit the model's gradients.

    Raises:
        TypeError: it is neither a name, nor a function of (state, bucket), nor a pair with one.
        PlanError: an unknown name, or gradients that the named hook would lose.
    """
    if hook is None:
        return
    if isinstance(hook, str):
        if hook not in _NAMES:
            raise PlanError(f"comm_hook={hook!r}: {_allowed()}", code="XMP-P15")
        _check_fits(hook, model)
        return
    function = hook[0] if isinstance(hook, tuple) and len(hook) == 2 else hook
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"comm_hook is {hook!r}: {_allowed()}")
    try:
        inspect.signature(function).bind(None, bucket=None)
    except (TypeError, ValueError):
        raise TypeError(
            f"comm_hook {_name(function)} does not take (state, bucket), as torch calls it: "
            "def hook(state, bucket: torch.distributed.GradBucket) -> "
            "torch.futures.Future[torch.Tensor]"
        ) from None


def hook_and_state(hook: Any, group: Any) -> tuple[Callable[..., Any], Any]:
    """Return hook and state for ``register_comm_hook``; ``group`` is the one that reduces."""
    if hook == "bf16":
        return _plain(default_hooks.bf16_compress_hook), group
    if hook == "fp16":
        return default_hooks.fp16_compress_hook, group
    if hook == "powersgd":
        return powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(group)
    function, state = hook if isinstance(hook, tuple) else (hook, group)
    given = getattr(function, "__annotations__", {}).values()
    is_bf16 = function is default_hooks.bf16_compress_hook
    return _plain(function) if is_bf16 or any(
        isinstance(a, str) for a in given
    ) else function, state


def _plain(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return the hook as torch accepts it (torch 2.13, DistributedDataParallel._check_comm_hook).

    By its own name torch refuses bfloat16's hook on groups other than nccl's, though gloo reduces
    bfloat16 as well; and it refuses annotations that are text (``from __future__ import
    annotations``), whatever they say.
    """

    def plain(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    plain.__annotations__ = {}
    return plain


def _check_fits(hook: str, model: Any) -> None:
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    odd = [name for name, parameter in trained if not parameter.is_floating_point()]
    if odd:
        raise PlanError(
            f"comm_hook={hook!r} would lose the imaginary part of gradients: {names_of(odd)} are "
            "complex. Leave comm_hook out, or give a hook of your own",
            code="XMP-P15",
        )
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    sparse = [
        name for name, each in model.named_modules() if isinstance(each, embeddings) and each.sparse
    ]
    if sparse:
        raise PlanError(
            f"comm_hook={hook!r} cannot reduce the sparse gradients of {names_of(sparse)}: make "
            "these embeddings with sparse=False, or leave comm_hook out",
            code="XMP-P15",
        )


def _allowed() -> str:
    return (
        f"give {', '.join(map(repr, _NAMES))}, a hook of torch's (such as those in "
        "torch.distributed.algorithms.ddp_comm_hooks), or a pair (hook, state)"
    )


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))
