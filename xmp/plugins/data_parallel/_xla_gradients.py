"""Averaged gradients for models on XLA devices, where DistributedDataParallel does not run.

torch_xla's own way is ``xm.reduce_gradients(optimizer)`` before each ``optimizer.step()``
(torch_xla 2.9, ``xla_model.optimizer_step``): one scaled all-reduce of the optimizer's gradients.
Here the same all-reduce follows each ``backward()``, so that a program steps as it would alone. XLA
compiles it into the graph of the step, with whatever comes before and after.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from xmp._words.errors import PlanError
from xmp._words.framework import AveragingOptions, Members

from ._batch_norm import reduced
from ._model_face import ModelFace, alone
from ._torch_models import check_model, names_of, refuse_differences

__all__ = ["AveragingModel", "data_parallel"]

_MIB = 1024 * 1024


def data_parallel(framework: Any, model: Any, options: AveragingOptions) -> Any:
    """Wrap ``model``; ``framework`` has the collectives. See ``xmp.data_parallel``."""
    try:
        scope: Members = framework.averaging_members(options.group)
    except ValueError as error:  # torch does not know the group
        raise PlanError(str(error), code="XMP-P15") from None
    check_model(model)
    if options.comm_hook is not None:
        raise PlanError(
            "comm_hook= belongs to torch's DistributedDataParallel, which does not run on XLA "
            "devices: leave it out, or train in bfloat16",
            code="XMP-P15",
        )
    if scope.rank < 0:
        raise PlanError(
            "data_parallel(group=…): this replica is not in the group. Call it on the group's own "
            "replicas alone: where xmp.rank(group) is not -1",
            code="XMP-P12",
        )
    if len(scope.ranks) == 1:
        return alone(model, options.group)
    refuse_differences(model, options, scope.ranks, scope.all_gather)
    if options.sync_batchnorm:
        model = reduced(model, lambda tensor: scope.all_reduce(tensor, "sum"))
    _make_equal(model, scope)
    return AveragingModel(model, options, scope)


class AveragingModel(ModelFace, torch.nn.Module):  # type: ignore[misc]
    """A model whose gradients are averaged when a ``backward()`` ends."""

    def __init__(self, model: Any, options: AveragingOptions, scope: Members) -> None:
        super().__init__()
        self.module = model
        self.training = model.training
        self._options = options
        self._scope = scope
        self._averages = True
        self._is_queued = False
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._reached)
        self._made()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return what the model returns."""
        self._is_queued = False  # a backward that raised has not averaged
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let ``backward()`` within it accumulate gradients and not average."""
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before

    def __deepcopy__(self, memo: dict[int, Any]) -> AveragingModel:
        return type(self)(copy.deepcopy(self.module, memo), self._options, self._scope)

    def _reached(self, gradient: Any) -> None:
        """Have all gradients averaged when the backward that computed this one ends."""
        if self._averages and not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average(self) -> None:
        self._is_queued = False
        for bucket in self._buckets():
            means = self._scope.all_reduce([parameter.grad for parameter in bucket], "mean")
            for parameter, mean in zip(bucket, means):
                parameter.grad = mean

    def _buckets(self) -> Iterator[list[Any]]:
        """Yield lists of parameters whose gradients are reduced together, the last layers first."""
        limit, size, bucket = self._options.first_bucket_mb * _MIB, 0, list[Any]()
        for parameter in reversed(self._with_gradients()):
            bytes = parameter.grad.numel() * parameter.grad.element_size()
            if bucket and size + bytes > limit:
                yield bucket
                limit, size, bucket = self._options.bucket_mb * _MIB, 0, []
            bucket.append(parameter)
            size += bytes
        if bucket:
            yield bucket

    def _with_gradients(self) -> list[Any]:
        """Return the parameters that have gradients, the same ones on every replica.

        Raises:
            RuntimeError: a parameter has no gradient, which may differ between replicas.
        """
        named = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        if not self._options.find_unused_parameters:
            unused = [name for name, parameter in named if parameter.grad is None]
            if unused:
                raise RuntimeError(
                    f"parameters without a gradient after backward(): {names_of(unused)}. If a "
                    "step may leave parameters out, wrap the model with "
                    "find_unused_parameters=True, which costs one more reduction for each step"
                )
            return [parameter for _, parameter in named]
        used = self._scope.all_reduce([int(p.grad is not None) for _, p in named], "max")
        reached = [parameter for (_, parameter), is_used in zip(named, used) if is_used]
        for parameter in reached:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return reached


@torch.no_grad()  # type: ignore[untyped-decorator]
def _make_equal(model: Any, scope: Members) -> None:
    """Give all replicas the parameters and buffers of the group's first rank, in place."""
    mine = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    first = scope.broadcast({name: each.detach() for name, each in mine.items()}, 0)
    if scope.rank != 0:
        for name, each in mine.items():
            each.copy_(first[name])
