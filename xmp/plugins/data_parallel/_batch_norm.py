"""BatchNorm over the global batch, also where torch's SyncBatchNorm cannot run.

torch's own layer runs only on accelerators (torch 2.13, SyncBatchNorm.forward). On the CPU, and on
XLA, two differentiable all-reduces do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["ReducedBatchNorm", "reduced", "synchronized"]


def synchronized(model: Any, group: Any) -> Any:
    """Return the model with its BatchNorm layers replaced; the new layer, if it is one itself."""
    if next(model.parameters()).device.type != "cpu":
        return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model, group)

    def sum_over_group(tensor: Any) -> Any:
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    return reduced(model, sum_over_group)


def reduced(model: Any, add_up: Callable[[Any], Any]) -> Any:
    """Do as ``synchronized`` by ``add_up``, which returns the sum of a tensor over the replicas."""
    if isinstance(model, ReducedBatchNorm):
        model._add_up = add_up  # perhaps over another group
    elif isinstance(model, _BatchNorm):
        return ReducedBatchNorm(model, add_up)
    for name, child in model.named_children():
        new = reduced(child, add_up)
        if new is not child:
            model.add_module(name, new)
    return model


class ReducedBatchNorm(_BatchNorm):  # type: ignore[misc]
    """A BatchNorm layer with the parameters and buffers of another, whose batch is the global one.

    It can be pickled and deep-copied. Where a pickled one arrives, it normalises by its own batch.
    """

    def __init__(self, layer: Any, add_up: Callable[[Any], Any]) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum, False, False)
        self.__dict__.update(layer.__dict__)  # parameters, buffers, hooks, training
        self._add_up: Callable[[Any], Any] | None = add_up

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_add_up": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy that still reduces, as it is in this process."""
        import copy

        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = {name: each for name, each in self.__dict__.items() if name != "_add_up"}
        twin.__dict__.update(copy.deepcopy(state, memo), _add_up=self._add_up)
        return twin

    def _check_input_dim(self, input: Any) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected input of at least 2 dimensions, not {input.dim()}")

    def forward(self, input: Any) -> Any:
        """Normalise by the statistics of all replicas' batches; in ``eval()`` by the buffers."""
        if not self.training or self._add_up is None:
            return super().forward(input)
        self._check_input_dim(input)
        others = [dim for dim in range(input.dim()) if dim != 1]
        local = input.new_full((1,), input.numel() / input.shape[1])
        # In float32 at least: a sum of halves overflows.
        wide = input if input.dtype in (torch.float32, torch.float64) else input.float()
        sums = torch.cat([wide.sum(others), local.to(wide.dtype)])
        total = _Sum.apply(sums, self._add_up)
        count, mean = total[-1].detach(), total[:-1] / total[-1].detach()
        shape = [1, -1, *[1] * (input.dim() - 2)]
        centred = wide - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(others), self._add_up) / count
        self._remember(mean.detach(), variance.detach(), count)
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        out = centred * scale.view(shape)
        if self.bias is not None:
            out = out + self.bias.view(shape)
        return out.to(input.dtype)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _remember(self, mean: Any, variance: Any, count: Any) -> None:
        """Update the running statistics as ``_BatchNorm`` does: the variance is unbiased there."""
        if not self.track_running_stats or self.running_mean is None:
            return
        self.num_batches_tracked.add_(1)
        if self.momentum is None:
            share = 1.0 / float(self.num_batches_tracked)
        else:
            share = self.momentum
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


class _Sum(torch.autograd.Function):  # type: ignore[misc]
    """The sum of a tensor over the replicas; gradients are summed too, as each used the sum."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, add_up: Callable[[Any], Any]) -> Any:
        ctx.add_up = add_up
        return add_up(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        return ctx.add_up(gradient.contiguous()), None
