"""Notices training whose gradients DistributedDataParallel does not average, in silence.

Its reducer knows the parameters that were trainable when it was made, and averages in the one
backward that follows a forward of the wrapper (torch 2.13, ``expect_autograd_hooks_`` of
torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from xmp import _log
from xmp._framework import AveragingOptions

from ._torch_models import names_of

__all__ = ["Watch"]

_is_trained = attrgetter("requires_grad")
_values = methodcaller("values")


class Watch:
    """Looks at one wrapped model: at each forward, and when a backward reaches two parameters."""

    def __init__(self, model: Any, options: AveragingOptions) -> None:
        self._reduced = [each for each in model.parameters() if each.requires_grad]
        self._may_freeze = options.find_unused_parameters
        self._look(model)
        self._averaged: set[int] = set()
        self._is_local = False
        self._end_of_local: Callable[[], Any] | None = None
        self._warned: set[str] = set()
        # With a static graph, a checkpointed part may reach a parameter twice in one backward.
        self._is_reached_once = not options.static_graph
        ends = self._reduced[:: max(1, len(self._reduced) - 1)]  # the first and the last
        for parameter in ends:
            self._listen(parameter)

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def forward(self, model: Any, averages: bool) -> None:
        """A forward with gradients begins; ``averages``: it is not within ``no_sync()``.

        Raises:
            RuntimeError: the trainable parameters are not those that were wrapped.
        """
        self._check_parameters(model)
        self._is_local = not averages
        if averages:
            self._averaged.clear()
            if self._end_of_local is not None:
                self._end_of_local()
                self._end_of_local = None

    def _on_steps(self) -> Callable[[], Any]:
        """Look at the steps of all optimizers, while gradients that are not averaged may be left.

        A step of any other kind goes unnoticed. Return what ends it; this object's end does, too.
        """
        stepped = weakref.WeakMethod(self._stepped)

        @torch._disable_dynamo  # type: ignore[untyped-decorator]
        def hook(optimizer: Any, *_: Any) -> None:
            call = stepped()
            if call is not None:
                call(optimizer)

        end = weakref.finalize(self, register_optimizer_step_post_hook(hook).remove)
        end.atexit = False
        return end

    def _stepped(self, optimizer: Any) -> None:
        """After the step: the closure that it may have called has averaged, or has not."""
        if self._end_of_local is None:
            return
        reduced = set(map(id, self._reduced))
        given = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        if any(id(each) in reduced and each.grad is not None for each in given):
            self._warn(
                "an optimizer has made a step with gradients of a backward() within no_sync(), "
                "which were never averaged: replicas differ now. Run the last forward and backward "
                "of each step outside of no_sync()"
            )

    def _listen(self, parameter: Any) -> None:
        """As long as this object lives; the parameter does not keep it alive."""
        self._averaged.add(id(parameter))
        accumulated = weakref.WeakMethod(self._accumulated)

        @torch._disable_dynamo  # type: ignore[untyped-decorator]
        def hook(parameter: Any) -> None:
            call = accumulated()
            if call is not None:
                call(parameter)

        remove = parameter.register_post_accumulate_grad_hook(hook).remove
        weakref.finalize(self, remove).atexit = False

    def _accumulated(self, parameter: Any) -> None:
        if self._is_local:
            self._end_of_local = self._end_of_local or self._on_steps()
        elif self._is_reached_once and id(parameter) in self._averaged:
            self._warn(
                "the gradients of a backward() are not averaged: it follows no call of what "
                "data_parallel has returned, but one of model.module or of a method of the model, "
                "or it is the second backward() after one call. Call the wrapper, and backward() "
                "once for each call"
            )
        else:
            self._averaged.add(id(parameter))

    def _check_parameters(self, model: Any) -> None:
        """Compare identities in C: a model has thousands of parts, and each forward looks."""
        as_before = _identities(self._parts) == self._found
        if not as_before or not all(map(_is_trained, self._on)) or any(map(_is_trained, self._off)):
            self._refuse_change(model)
            self._look(model)  # the change was harmless

    def _look(self, model: Any) -> None:
        parts = ((each._parameters, each._modules) for each in model.modules())
        self._parts = [*chain.from_iterable(parts)]
        self._found = _identities(self._parts)
        self._on = [each for each in model.parameters() if each.requires_grad]
        self._off = [each for each in model.parameters() if not each.requires_grad]

    def _refuse_change(self, model: Any) -> None:
        known = set(map(id, self._reduced))
        trained = {id(each): name for name, each in model.named_parameters() if each.requires_grad}
        added = [name for key, name in trained.items() if key not in known]
        if added:
            raise RuntimeError(
                "parameters became trainable after data_parallel, or were added or replaced: "
                f"{names_of(added)}. Their gradients would not be averaged: wrap the model again, "
                "xmp.data_parallel(model.module), and give its parameters to the optimizer"
            )
        if known - set(trained) and not self._may_freeze:
            raise RuntimeError(
                "parameters were frozen, or taken out of the model, after data_parallel: backward "
                "would wait for their gradients. Wrap the model again after such a change, "
                "xmp.data_parallel(model.module), or wrap it with find_unused_parameters=True"
            )

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warn_caller(text, beyond=("torch.",))


def _identities(parts: Iterable[Mapping[str, Any]]) -> list[int]:
    return [*map(id, chain.from_iterable(map(_values, parts)))]
