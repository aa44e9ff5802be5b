"""Warnings of training whose gradients DistributedDataParallel silently fails to average.

Its reducer knows only the parameters that were trainable when it was made, and averages only in the
one backward that follows a forward of the wrapper (torch 2.13, ``expect_autograd_hooks_`` of
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

from xmp._os import log
from xmp._words.framework import AveragingOptions

from ._torch_models import names_of

__all__ = ["GradientWatch"]

_is_trained = attrgetter("requires_grad")
_dtype = attrgetter("dtype")
_values = methodcaller("values")

_watches: weakref.WeakValueDictionary[int, weakref.WeakSet[GradientWatch]] = (
    weakref.WeakValueDictionary()
)
"""The watches of a parameter, by its id: models that are wrapped separately may share one."""


class GradientWatch:
    """The watch over one wrapped model.

    It looks at each forward, and when a backward reaches the first or the last parameter.
    """

    def __init__(self, model: Any, options: AveragingOptions) -> None:
        self._reduced = [each for each in model.parameters() if each.requires_grad]
        self._kinds = _kinds(self._reduced)
        self.inner, call = options.words
        self._again = f"{call}({self.inner}) (and compile that, if this was compiled)"
        self._may_freeze = options.find_unused_parameters
        self._is_static = options.static_graph
        self._has_begun = False
        self._look(model)
        self.averaged: set[int] = set()
        self.is_local = False
        self._end_of_local: Callable[[], Any] | None = None
        self._warned: set[str] = set()
        ends = self._reduced[:: max(1, len(self._reduced) - 1)]  # the first and the last
        for parameter in ends:
            self._listen(parameter)

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def forward(self, model: Any, averages: bool) -> None:
        """Check the model when a forward with gradients begins.

        ``averages`` is False within ``no_sync()``.

        Raises:
            RuntimeError: the trainable parameters are not those that were wrapped, or a static
                graph begins within ``no_sync()``.
        """
        self._check_parameters(model)
        if self._is_static and not (averages or self._has_begun):
            raise RuntimeError(  # where torch 2.13 asserts in expect_autograd_hooks_
                "with static_graph=True the first forward and backward must be outside of "
                "no_sync(): they show torch which parameters a step uses"
            )
        self._has_begun = True
        self.is_local = not averages
        if averages:
            self.averaged.clear()
            if self._end_of_local is not None:
                self._end_of_local()
                self._end_of_local = None

    def look_at_steps(self) -> None:
        """Warn of steps until gradients are averaged again; only torch's optimizers are seen."""
        if self._end_of_local is not None:
            return
        stepped = weakref.WeakMethod(self._stepped)

        @torch._disable_dynamo  # type: ignore[untyped-decorator]
        def hook(optimizer: Any, *_: Any) -> None:
            call = stepped()
            if call is not None:
                call(optimizer)

        end = weakref.finalize(self, register_optimizer_step_post_hook(hook).remove)
        end.atexit = False
        self._end_of_local = end

    def _stepped(self, optimizer: Any) -> None:
        """Warn if a step used local gradients; after it, as it may call a closure that averages."""
        if self._end_of_local is None:
            return
        reduced = set(map(id, self._reduced))
        given = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        if any(id(each) in reduced and each.grad is not None for each in given):
            self.warn(
                "an optimizer has made a step with gradients of a backward() within no_sync(), "
                "which were never averaged: replicas differ now. Run the last forward and backward "
                "of each step outside of no_sync()"
            )

    def _listen(self, parameter: Any) -> None:
        """Watch a parameter while this object lives; the parameter does not keep it alive."""
        self.averaged.add(id(parameter))
        watches = _watches.setdefault(id(parameter), weakref.WeakSet())
        watches.add(self)
        own = weakref.ref(self)

        @torch._disable_dynamo  # type: ignore[untyped-decorator]
        def hook(parameter: Any) -> None:
            known = list(watches)
            if known and known[0] is own():  # one of the hooks of this parameter acts for all
                _reached(id(parameter), known)

        remove = parameter.register_post_accumulate_grad_hook(hook).remove
        weakref.finalize(self, remove).atexit = False

    def averages(self, key: int) -> bool:
        """Return whether a gradient computed now for the parameter of this id is averaged.

        With a static graph, a checkpointed part may reach a parameter twice in one backward.
        """
        return not self.is_local and (self._is_static or key not in self.averaged)

    def _check_parameters(self, model: Any) -> None:
        """Raise RuntimeError for a change after which gradients would not be averaged.

        Identities are compared in C: a model has thousands of parts, and each forward looks.
        """
        as_before = _identities(self._parts) == self._found
        if not as_before or not all(map(_is_trained, self._on)) or any(map(_is_trained, self._off)):
            self._refuse_change(model)
            self._look(model)  # the change was harmless
        if _kinds(self._reduced) != self._kinds:
            raise RuntimeError(
                "parameters have changed their dtype or device after data_parallel, and their "
                f"gradients would not be averaged: wrap the model again, {self._again}"
            )

    def _look(self, model: Any) -> None:
        parts = ((each._parameters, each._modules) for each in model.modules())
        self._parts = [*chain.from_iterable(parts)]
        self._found = _identities(self._parts)
        self._on = [each for each in model.parameters() if each.requires_grad]
        self._off = [each for each in model.parameters() if not each.requires_grad]

    def _refuse_change(self, model: Any) -> None:
        known = set(map(id, self._reduced))
        named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        has_stand_ins = not all(each.is_leaf for each in named.values())
        added = [name for name, each in named.items() if each.is_leaf and id(each) not in known]
        if added:
            raise RuntimeError(
                "parameters became trainable after data_parallel, or were added or replaced: "
                f"{names_of(added)}. Their gradients would not be averaged: wrap the model again, "
                f"{self._again}, and give its parameters to the optimizer"
            )
        # A model that is frozen as a whole takes no part in a step, as the discriminator does not
        # while a generator is trained. The stand-ins that torch.func.functional_call puts in place
        # of parameters were computed from parameters, which get the gradients.
        is_partly = bool(named) and bool(known - set(map(id, named.values())))
        if is_partly and not has_stand_ins and not self._may_freeze:
            raise RuntimeError(
                "parameters were frozen, or taken out of the model, after data_parallel: backward "
                "would wait for their gradients. Wrap the model again after such a change, "
                f"{self._again}, or wrap it with find_unused_parameters=True"
            )

    def warn(self, text: str) -> None:
        """Warn once for each text."""
        if text not in self._warned:
            self._warned.add(text)
            log.warn_caller(text, beyond=("torch.",))


def _kinds(parameters: list[Any]) -> list[Any]:
    """Return their dtypes, and the device of one: models are moved as a whole."""
    return [parameters[0].device, *map(_dtype, parameters)]


def _identities(parts: Iterable[Mapping[str, Any]]) -> list[int]:
    return [*map(id, chain.from_iterable(map(_values, parts)))]


def _reached(key: int, watches: list[GradientWatch]) -> None:
    """Note, or warn, that a backward computed a gradient of a parameter which ``watches`` share."""
    averaging = [each for each in watches if each.averages(key)]
    local = [each for each in watches if each.is_local]
    for each in averaging:
        each.averaged.add(key)
    if averaging:
        return
    for each in local:
        each.look_at_steps()
    if not local:
        watches[0].warn(
            "the gradients of a backward() are not averaged: it follows no call of the wrapper, "
            f"but one of {watches[0].inner} or of a method of the model, or it is the second "
            "backward() after one call. Call the wrapper, and backward() once for each call"
        )
