"""Notices training whose gradients DistributedDataParallel does not average, in silence.

Its reducer knows the parameters that were trainable when it was made, and averages in the one
backward that follows a forward of the wrapper (torch 2.13, ``expect_autograd_hooks_`` of
torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from xmp import _log
from xmp._framework import AveragingOptions

from ._torch_models import names_of

__all__ = ["Watch"]


class Watch:
    """Looks at one wrapped model: at each forward, and when a backward reaches two parameters."""

    def __init__(self, model: Any, options: AveragingOptions) -> None:
        trained = [each for each in _parameters(model) if each.requires_grad]
        self._known = {id(each): each for each in trained}
        self._count = len(trained)
        self._may_freeze = options.find_unused_parameters
        self._probe = trained[0]
        self._averaged: set[int] = set()
        self._is_local = False
        self._version: int | None = None
        self._warned: set[str] = set()
        # With a static graph, a checkpointed part may reach a parameter twice in one backward.
        watched = [] if options.static_graph else [trained[0], trained[-1]]
        for parameter in {id(each): each for each in watched}.values():
            self._averaged.add(id(parameter))
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def forward(self, model: Any, averages: bool) -> None:
        """A forward with gradients begins; ``averages``: it is not within ``no_sync()``.

        Raises:
            RuntimeError: the trainable parameters are not those that were wrapped.
        """
        self._check_parameters(model)
        version = self._probe._version
        if self._version not in (None, version):
            self._warn(
                "parameters have changed since a backward() within no_sync(), whose gradients "
                "were never averaged: replicas differ now. Run the last forward and backward of "
                "each step outside of no_sync()"
            )
            self._version = version
        if averages:
            self._version, self._is_local = None, False
            self._averaged.clear()
        else:
            self._is_local = True
            if self._version is None:
                self._version = version

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def _accumulated(self, parameter: Any) -> None:
        if self._is_local:
            return
        if id(parameter) in self._averaged:
            self._warn(
                "the gradients of a backward() are not averaged: it follows no call of what "
                "data_parallel has returned, but one of model.module or of a method of the model, "
                "or it is the second backward() after one call. Call the wrapper, and backward() "
                "once for each call"
            )
        self._averaged.add(id(parameter))

    def _check_parameters(self, model: Any) -> None:
        count = 0
        for parameter in _parameters(model):
            if parameter.requires_grad:
                count += 1
                if id(parameter) not in self._known:
                    raise RuntimeError(_added(model, self._known))
        if count < self._count and not self._may_freeze:
            raise RuntimeError(
                "parameters were frozen, or taken out of the model, after data_parallel: backward "
                "would wait for their gradients. Wrap the model again after such a change, "
                "xmp.data_parallel(model.module), or wrap it with find_unused_parameters=True"
            )

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warn_caller(text, beyond=("torch.",))


def _added(model: Any, known: dict[int, Any]) -> str:
    named = model.named_parameters()
    names = [name for name, each in named if each.requires_grad and id(each) not in known]
    return (
        f"parameters became trainable after data_parallel, or were added or replaced: "
        f"{names_of(names)}. Their gradients would not be averaged: wrap the model again, "
        "xmp.data_parallel(model.module), and give its parameters to the optimizer"
    )


def _parameters(model: Any) -> Iterator[Any]:
    """Each parameter of each module; ``model.parameters()`` takes longer, since it makes names."""
    seen, stack = set(), [model]
    while stack:
        module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield from filter(_is_there, module._parameters.values())
        stack.extend(filter(_is_there, module._modules.values()))


def _is_there(each: Any) -> bool:
    return each is not None
