"""A small torch model, and whether its gradients are averaged."""

from __future__ import annotations

from typing import Any

import xmp

__all__ = ["are_equal", "inputs", "net"]


def net() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def inputs(rank: int) -> Any:
    import torch

    return torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))


def are_equal(model: Any) -> bool:
    """Whether all replicas have the same gradients."""
    import torch

    mine = [each.grad for each in model.parameters() if each.grad is not None]
    firsts = xmp.all_gather(mine)[0]
    return all(map(torch.equal, mine, firsts))
