"""Checks that a torch model can be trained on several replicas, and is the same one on all of them.

torch's DistributedDataParallel compares only the shapes of the parameters that it reduces (torch
2.13, ``_verify_param_shape_across_processes``). At other differences it hangs, aborts, or adds up
gradients of different parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product, zip_longest
from typing import Any

import torch

from xmp._os import log
from xmp._words.errors import PlanError
from xmp._words.framework import AveragingOptions

from ._model_face import ModelFace

__all__ = ["check_model", "names_of", "refuse_differences"]

_MOST = 5
"""The most names shown of a long list."""


def check_model(model: Any) -> None:
    """Raise PlanError for a model that cannot be wrapped as it is; warn of what costs time."""
    _refuse_wrapped(model)
    named = dict(model.named_parameters())
    _refuse_empty(named, dict(model.named_buffers()))
    trained = {name: each for name, each in named.items() if each.requires_grad}
    if not trained:
        raise PlanError(
            f"{type(model).__qualname__} has no parameter that requires a gradient: there is "
            "nothing to average. Use it as it is, or make parameters trainable first "
            "(requires_grad_())",
            code="XMP-P15",
        )
    inferred = [name for name, each in named.items() if each.is_inference()]
    if inferred:
        raise PlanError(
            f"parameters were made under torch.inference_mode(), which cannot train: "
            f"{names_of(inferred)}. Make the model outside of it",
            code="XMP-P15",
        )
    _check_devices(trained, model.buffers())
    odd = [name for name, each in trained.items() if _is_odd(each)]
    if odd:
        log.warn_caller(
            f"parameters that are not contiguous: {names_of(odd)}. Their gradients are added up in "
            "the order of memory, wrongly if strides differ between replicas: make them contiguous "
            "before data_parallel (parameter.data = parameter.data.contiguous())"
        )


def names_of(names: Iterable[str]) -> str:
    """Return the first few of ``names``, and how many more there are, as text."""
    all_names = list(names)
    more = f" and {len(all_names) - _MOST} more" if len(all_names) > _MOST else ""
    return ", ".join(all_names[:_MOST]) + more


def _refuse_wrapped(model: Any) -> None:
    wrapper = getattr(model, "_orig_mod", model)  # what torch.compile returns has it (torch 2.13)
    if isinstance(wrapper, (ModelFace, torch.nn.parallel.DistributedDataParallel)):
        again = "" if wrapper is model else ", and compile the result"
        raise PlanError(
            f"the model is wrapped already, by {type(wrapper).__qualname__}: give the model itself "
            f"(wrapped.module){again}",
            code="XMP-P15",
        )
    if isinstance(model, torch.nn.DataParallel):
        raise PlanError(
            "the model is wrapped by torch.nn.DataParallel, which splits batches over the devices "
            "of one process: give the model itself (wrapped.module)",
            code="XMP-P15",
        )


def _refuse_empty(parameters: dict[str, Any], buffers: dict[str, Any]) -> None:
    tensors = {**parameters, **buffers}
    is_lazy = torch.nn.parameter.is_lazy
    lazy = [name for name, tensor in tensors.items() if is_lazy(tensor)]
    if lazy:
        raise PlanError(
            f"parameters of lazy modules have no shape yet: {names_of(lazy)}. Call the model once "
            "with an example input before data_parallel",
            code="XMP-P15",
        )
    meta = [name for name, tensor in tensors.items() if tensor.device.type == "meta"]
    if meta:
        raise PlanError(
            f'parameters on the "meta" device have no values: {names_of(meta)}. First move the '
            "model by model.to_empty(device=xmp.device()), and initialise it",
            code="XMP-P15",
        )


def _check_devices(trained: dict[str, Any], buffers: Iterable[Any]) -> None:
    """Raise PlanError for several types of devices, or one device that is not this replica's."""
    places = {each.device for each in [*trained.values(), *buffers]}
    if len({place.type for place in places}) > 1:
        said = ", ".join(sorted(map(str, places)))
        raise PlanError(
            f"the model's parameters and buffers are on several types of devices: {said}. Move all "
            "of them: model.to(xmp.device())",
            code="XMP-P15",
        )
    (place, *others) = places
    if others or place.type in ("cpu", "xla"):  # a model may be split over devices
        return
    current = torch.get_device_module(place.type).current_device()
    if place.index not in (None, current):
        raise PlanError(
            f"the model is on {place}, but this replica's device is {place.type}:{current}: move "
            "it first, model.to(xmp.device())",
            code="XMP-P15",
        )


def _is_odd(parameter: Any) -> bool:
    """Return whether its memory format is none of those to which torch moves whole models."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if parameter.layout != torch.strided or parameter.is_contiguous():
        return False
    format = formats.get(parameter.dim())
    return format is None or not parameter.is_contiguous(memory_format=format)


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
                    "order, and pass the same options on every replica",
                    code="XMP-P15",
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
