"""Local SGD: an optimizer that averages the parameters of all replicas every few steps."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import (
    DistributedOptimizer,
    PostLocalSGDOptimizer,
    ZeroRedundancyOptimizer,
)

__all__ = ["LocalSGDOptimizer", "averaged"]


def averaged(optimizer: Any, period: int, warmup: int) -> Any:
    """Wrap the optimizer: after ``warmup`` steps it averages parameters every ``period`` steps.

    One without parameters, as Lightning makes for a module that has none, stays as it is.

    Raise ValueError for an optimizer that is distributed itself.
    """
    optimizer = getattr(optimizer, "_optimizer", optimizer)  # Lightning's wrapper has it there
    refused = (ZeroRedundancyOptimizer, PostLocalSGDOptimizer, DistributedOptimizer)
    if isinstance(optimizer, refused):
        raise ValueError(
            "Currently model averaging cannot work with a distributed optimizer of type "
            f"{type(optimizer).__name__}: return a plain one from configure_optimizers"
        )
    if not any(group["params"] for group in optimizer.param_groups):
        return optimizer
    return LocalSGDOptimizer(optimizer, PeriodicModelAverager(period, warmup_steps=warmup))


class LocalSGDOptimizer(PostLocalSGDOptimizer):  # type: ignore[misc]
    """torch's optimizer, taking a closure as well: Lightning's Trainer passes the training step.

    Lightning 2.6 averages outside the optimizer instead. What is averaged, and when, is the same;
    here the averager's step is in the optimizer's state, and so in checkpoints.
    """

    def step(self, closure: Any = None) -> Any:
        """Take one step, average where it is due, and return the closure's result."""
        result = self.optim.step(closure)
        self.averager.average_parameters(params=self.optim.param_groups)
        return result

    @property
    def param_groups(self) -> Any:
        """The groups of the inner optimizer, which makes new ones when it loads its state."""
        return self.optim.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.optim.param_groups = groups

    @property
    def defaults(self) -> Any:
        """The defaults of the inner optimizer; torch's wrapper has none."""
        return self.optim.defaults
