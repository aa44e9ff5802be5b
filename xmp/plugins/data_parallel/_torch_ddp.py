"""torch's DistributedDataParallel, set up for a replica."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from xmp._inside import device, rank, world_size
from xmp._inside.frameworks import _exchange
from xmp._inside.frameworks._torch_groups import place_in
from xmp._inside.frameworks._torch_wire import TorchWire
from xmp._os import log
from xmp._words.errors import PlanError
from xmp._words.framework import AveragingOptions

from ._batch_norm import synchronized
from ._comm_hooks import check_hook, hook_and_state
from ._gradient_watch import GradientWatch
from ._model_face import Alone, ModelFace, alone
from ._torch_models import check_model, names_of, refuse_differences

__all__ = ["DataParallel", "data_parallel"]

_MIB = 1024 * 1024


def data_parallel(model: Any, options: AveragingOptions) -> Any:
    """Wrap ``model``; see ``xmp.data_parallel``."""
    check_model(model)
    check_hook(options.comm_hook, model)
    group = _group(options.group)
    if group is None or dist.get_world_size(group) == 1:
        return alone(model, options.group)
    _check_backend(model, group)
    ranks = dist.get_process_group_ranks(group)
    refuse_differences(model, options, ranks, functools.partial(_all_gather, group))
    if options.sync_batchnorm:
        model = synchronized(model, group)
    return DataParallel(model, group, options)


class DataParallel(ModelFace, DistributedDataParallel):  # type: ignore[misc]
    """torch's DistributedDataParallel with the face of the model; made by ``data_parallel``."""

    def __init__(
        self, model: Any, group: Any, options: AveragingOptions, init_sync: bool = True
    ) -> None:
        self.__dict__["_options"] = options
        super().__init__(
            model,
            device_ids=_device_ids(model),
            process_group=group,
            bucket_cap_mb=options.bucket_mb,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
            init_sync=init_sync,
        )
        self.training = model.training
        if options.comm_hook is not None:
            hook, state = hook_and_state(options.comm_hook, group)
            self.register_comm_hook(state, hook)
        if self._use_python_reducer:
            self.__class__ = _Traced
        else:
            self.__dict__["_watch"] = GradientWatch(model, options)
        if hasattr(model, "dim"):
            del self.dim  # only scatter() and gather() use it, which a replica does not need
        self._made()
        hidden = _hidden(model, self)
        if hidden:
            log.warn_caller(
                "torch's DistributedDataParallel hides attributes of the model by some of its own: "
                f"{names_of(hidden)}. Read and set the model's as {options.words[0]}.{hidden[0]}"
            )

    def _ddp_init_helper(self, *args: Any, **kwargs: Any) -> None:
        """Set the first bucket's size, which torch's constructor does not take.

        It is a field of the configuration in torch 2.13, and before that the module's constant
        (torch 2.9, "User can set dist._DEFAULT_FIRST_BUCKET_BYTES").
        """
        first = max(1, int(self._options.first_bucket_mb * _MIB))
        config = self.__dict__.get("_bucket_config")
        if config is not None:
            self._bucket_config = dataclasses.replace(config, first_bucket_bytes_cap=first)
        self.bucket_bytes_cap: int = max(1, self.bucket_bytes_cap)
        self.bucket_bytes_cap_default = True
        with _first_bucket(first):
            super()._ddp_init_helper(*args, **kwargs)

    @torch._disable_dynamo(recursive=False)  # type: ignore[untyped-decorator]
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the model's output; its ``backward()`` averages, unless within ``no_sync()``."""
        if torch.is_grad_enabled():
            self._watch.forward(self.module, self.require_backward_grad_sync)
        return super().forward(*inputs, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel | Alone:
        """Return a wrapped copy of the model, made without communication."""
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            return Alone(copy.deepcopy(self.module, memo))  # DistributedDataParallel refuses it
        memo[id(self.process_group)] = self.process_group  # layers may hold it, too
        model = copy.deepcopy(self.module, memo)
        return type(self)(model, self.process_group, self._options, init_sync=False)


class _Traced(DataParallel):
    """The wrapper without a watch, for torch._dynamo.config.optimize_ddp = "python_reducer".

    Dynamo then traces the wrapper's forward, and a watch would break the graph.
    """

    forward = DistributedDataParallel.forward

    def _get_name(self) -> str:
        return "DataParallel"


def _hidden(model: Any, wrapper: Any) -> list[str]:
    """Return the names of the model's own public attributes that the wrapper has as well."""
    common = {*dir(torch.nn.Module), "training", "module", "device"}  # these are the same
    own = {name for name in dir(model) if not name.startswith("_")} - common
    return sorted(own & {*vars(wrapper), *dir(type(wrapper))})


def _group(given: Any) -> Any:
    """Return the process group that averages; None in a world of one without any.

    Raises:
        TypeError: ``given`` is not a process group. PlanError: torch does not know it, this replica
            is not in it, or the default group is not there yet.
    """
    if given is not None:
        _refuse_group(given)
        return given
    if dist.is_initialized():
        return dist.group.WORLD
    if world_size() > 1:
        raise PlanError(
            "data_parallel() needs the process group, which is not there yet: call "
            'xmp.init_process_group() before, or launch with backend="auto" (spawn, launch)',
            code="XMP-P12",
        )
    return None


def _refuse_group(given: Any) -> None:
    try:
        place, _ = place_in(dist, given)
    except ValueError as error:
        raise PlanError(str(error), code="XMP-P15") from None
    if place < 0:
        raise PlanError(
            f"data_parallel(group=…): rank {rank()} is not in the group. Call it on the "
            "group's own replicas alone: where xmp.rank(group) is not -1",
            code="XMP-P12",
        )


def _all_gather(group: Any, value: Any) -> list[Any]:
    return _exchange.all_gather(value, TorchWire(torch, device, group))


def _check_backend(model: Any, group: Any) -> None:
    """Raise PlanError where the group cannot reduce what lies on the model's device."""
    kind = next(model.parameters()).device.type
    try:
        group._get_backend(torch.device(kind))
    except RuntimeError:
        raise PlanError(
            f"the model is on {kind}, for which the process group ({dist.get_backend(group)}) has "
            "no backend: move it, model.to(xmp.device()), or launch with another backend=",
            code="XMP-P12",
        ) from None


def _device_ids(model: Any) -> list[int] | None:
    """Return the index of the model's one device, to which DistributedDataParallel moves inputs.

    None for a model on the CPU or on several devices.
    """
    places = {parameter.device for parameter in model.parameters()}
    (place, *others) = places
    if others or place.type == "cpu" or place.index is None:
        return None
    return [place.index]


@contextmanager
def _first_bucket(size: int) -> Iterator[None]:
    before = getattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", None)
    dist._DEFAULT_FIRST_BUCKET_BYTES = size
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = before
