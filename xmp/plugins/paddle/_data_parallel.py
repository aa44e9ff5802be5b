"""``DataParallel``: ``xmp.data_parallel`` with Paddle's parameters, or Paddle's own."""

from __future__ import annotations

import functools
import sys
from typing import Any, NoReturn

from xmp._words.errors import PlanError
from xmp._words.framework import AveragingOptions
from xmp.plugins.data_parallel.call import wrap

from ._environment import paddle_runs, refuse_paddle_on
from ._group import refuse_unconnected
from ._sync import is_paddles, refuse_other_models

__all__ = ["DataParallel"]

_WORDS = {"first_bucket_mb": "last_comm_buffer_size", "bucket_mb": "comm_buffer_size"}
"""xmp's names of options in its errors, and Paddle's."""
_INSTEAD = {
    **dict.fromkeys(("set_state_dict", "set_dict", "load_dict"), "call load_state_dict(state)"),
    "scale_loss": "use the loss as it is: backward averages the gradients",
    "apply_collective_grads": "remove the call: backward averages the gradients",
}
"""Methods of Paddle's class, and what torch has in their place."""
_IGNORED = "_ddp_params_and_buffers_to_ignore"
"""The attribute of a model with the names that DistributedDataParallel leaves out (torch 2.13)."""


class _Known(type):
    """The metaclass: ``isinstance`` is true of what ``DataParallel`` has wrapped."""

    def __instancecheck__(cls, instance: object) -> bool:
        if isinstance(instance, getattr(sys.modules.get("paddle"), "DataParallel", ())):
            return True
        own = getattr(instance, "__dict__", {})
        return "_layers" in own and own["_layers"] is own.get("_modules", {}).get("module")


class DataParallel(metaclass=_Known):
    """Wrap a model, so that ``backward()`` averages its gradients over the trainers.

    Call ``init_parallel_env()`` before. A ``torch.nn.Module`` becomes what ``xmp.data_parallel``
    returns, a module of torch's with the model as ``_layers``; a ``paddle.nn.Layer`` becomes
    Paddle's own ``DataParallel``. Parameters with ``no_sync = True`` are left out, also when the
    model is wrapped again: neither their values nor their gradients are exchanged.

    Args:
        layers: the model.
        strategy: Paddle's deprecated argument; a model of torch's takes none.
        comm_buffer_size: the limit in MiB of a bucket in which gradients are reduced.
        last_comm_buffer_size: the same for the one bucket that is smaller, so that less is left to
            reduce when backward ends; torch makes the first one of a backward smaller.
        find_unused_parameters: for models in which a step leaves parameters without a gradient.
        group: what ``init_parallel_env`` returned, or another group of that framework's.

    Raises:
        TypeError: ``layers`` is neither a module of torch's nor a layer of Paddle's.
        PlanError: no parameter is trainable, or an argument is not allowed.
        RuntimeError: the trainers are not connected.
    """

    def __new__(
        cls,
        layers: Any,
        strategy: Any = None,
        comm_buffer_size: float = 25,
        last_comm_buffer_size: float = 1,
        find_unused_parameters: bool = False,
        group: Any = None,
    ) -> Any:
        if is_paddles(layers):
            refuse_paddle_on("the model")
            given = (strategy, comm_buffer_size, last_comm_buffer_size, find_unused_parameters)
            return sys.modules["paddle"].DataParallel(layers, *given, group)
        refuse_other_models("DataParallel", layers)
        _refuse_paddles(strategy)
        refuse_unconnected("DataParallel")
        _leave_out_marked(layers)
        return _wrapped(
            layers,
            AveragingOptions(
                bucket_mb=comm_buffer_size,
                first_bucket_mb=last_comm_buffer_size,
                find_unused_parameters=find_unused_parameters,
                group=group,
                words=("model._layers", "DataParallel"),
            ),
        )

    def __init_subclass__(cls) -> None:
        raise TypeError(
            "xmp.compat.paddle.DataParallel wraps a model and is no base class: derive from "
            "torch.nn.Module, and wrap the model in it"
        )


def _refuse_paddles(strategy: Any) -> None:
    if paddle_runs():
        raise PlanError(
            "the model is torch's, and Paddle connects these trainers: launch with "
            'runtime="cpu" or "cuda"',
            code="XMP-P15",
        )
    if strategy is not None:
        raise PlanError(
            f"strategy={strategy!r} is Paddle's, which has deprecated it: leave it out",
            code="XMP-P15",
        )


def _leave_out_marked(model: Any) -> None:
    """Have torch leave out the parameters with ``no_sync = True``, as Paddle does."""
    named = dict(model.named_parameters(remove_duplicate=False))
    names = [name for name, each in named.items() if getattr(each, "no_sync", False)]
    if not names:
        return
    if any(each.device.type == "xla" for each in named.values()):
        raise PlanError(
            f"DataParallel cannot leave out parameters with no_sync = True ({', '.join(names)}) on "
            "torch_xla: remove the attribute, or average the others by xmp.all_reduce",
            code="XMP-P15",
        )
    # torch looks for parameters of the root module with a dot before the name in one place, and
    # without it in others (_build_params_for_reducer; __init__).
    names += [f".{name}" for name in names if "." not in name]
    setattr(model, _IGNORED, sorted({*getattr(model, _IGNORED, ()), *names}))


def _wrapped(model: Any, options: AveragingOptions) -> Any:
    try:
        made = wrap(model, options)
    except (PlanError, TypeError) as error:
        for ours, paddles in _WORDS.items():
            error.args = (str(error).replace(ours, paddles), *error.args[1:])
        raise
    made.__dict__["_layers"] = model  # not a second submodule
    for name, instead in _INSTEAD.items():
        made.__dict__[name] = functools.partial(_refuse_method, name, instead)
    return made


def _refuse_method(name: str, instead: str, *_: Any, **__: Any) -> NoReturn:
    raise AttributeError(f"{name}() is Paddle's. In a program that uses torch, {instead}")
