"""Communication hooks of Lightning's DDPStrategy in xmp's replicas, local SGD among them.

Lightning 2.6 registers hooks on CUDA alone and ignores them elsewhere (strategies/ddp.py,
``_register_ddp_hooks``). torch's hooks work with gloo too, so here all devices have them.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from xmp._words.errors import PlanError

__all__ = ["CommHooks", "check_hooks"]


def check_hooks(strategy: Any) -> None:
    """Raise PlanError for hooks that cannot do in replicas what their options say."""
    _check_complete(strategy)
    _check_bf16(strategy)
    state = strategy._ddp_comm_state
    group = getattr(state, "process_group", None) or getattr(state, "subgroup", None)
    if group is not None:
        raise PlanError(
            f"the {type(state).__name__} holds a process group of this process, which replicas "
            "cannot use: give process_group=None (the group of all replicas), and subgroup=None "
            "(that of the replicas of one host)",
            code="XMP-P15",
        )
    if isinstance(state, PostLocalSGDState):
        _check_period(strategy._model_averaging_period)


def _check_complete(strategy: Any) -> None:
    for name in ("ddp_comm_state", "ddp_comm_wrapper"):
        if strategy._ddp_comm_hook is None and getattr(strategy, f"_{name}") is not None:
            raise PlanError(
                f"{name} without ddp_comm_hook has no effect: give the hook as well", code="XMP-P15"
            )


def _check_bf16(strategy: Any) -> None:
    """Raise PlanError for bfloat16's hooks on the CPU.

    torch 2.13 takes them on CUDA and XPU alone (DistributedDataParallel._check_comm_hook).
    """
    given = strategy._ddp_comm_hook, strategy._ddp_comm_wrapper
    kind = strategy.parallel_devices[0].type
    for hook in (default_hooks.bf16_compress_hook, default_hooks.bf16_compress_wrapper):
        if kind == "cpu" and hook in given:
            raise PlanError(
                f"{hook.__name__} on the CPU: torch compresses to bfloat16 on CUDA and XPU alone. "
                f"Give {hook.__name__.replace('bf16', 'fp16')}, or another accelerator",
                code="XMP-P15",
            )


def _check_period(period: Any) -> None:
    if period is None:
        raise PlanError(
            "Post-localSGD algorithm is used, but model averaging period is not provided to DDP "
            "strategy: give model_averaging_period=, the steps from one average to the next",
            code="XMP-P15",
        )
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise PlanError(
            f"model_averaging_period={period!r}: give a whole number of steps, 1 or more",
            code="XMP-P01",
        )


class CommHooks:
    """A mixin for Lightning's ``DDPStrategy``: its communication hooks in xmp's replicas."""

    def _register_ddp_hooks(self) -> None:
        this: Any = self
        _check_complete(this)
        state, hook = this._ddp_comm_state, this._ddp_comm_hook
        if isinstance(state, PostLocalSGDState):
            _give_subgroup(state, this.num_processes)
        if hook is not None:
            register = importlib.import_module(_overrides(this))._register_ddp_comm_hook
            register(this.model, state, hook, this._ddp_comm_wrapper)

    def _enable_model_averaging(self) -> None:
        """Wrap each optimizer so that it averages the parameters once local SGD has begun.

        Raises:
            ValueError: there is no ``model_averaging_period``, or an optimizer is distributed.
        """
        from ._local_sgd import averaged  # half a second: it has torch compile its optimizers

        this: Any = self
        period, start = this._model_averaging_period, this._ddp_comm_state.start_localSGD_iter
        _check_period(period)
        count = max(1, len(this.optimizers))  # each counts its own steps, the hook those of all
        this.optimizers = [averaged(each, period, start // count) for each in this.optimizers]

    def __getstate__(self) -> dict[str, Any]:
        fields: dict[str, Any] = {**super().__getstate__()}  # type: ignore[misc]
        if isinstance(fields.get("_ddp_comm_state"), PowerSGDState):
            fields["_ddp_comm_state"] = _Travelling(fields["_ddp_comm_state"])
        return fields

    def __setstate__(self, fields: dict[str, Any]) -> None:
        state = fields.get("_ddp_comm_state")
        if isinstance(state, _Travelling):
            fields["_ddp_comm_state"] = state.made()
        super().__setstate__(fields)  # type: ignore[misc]


def _overrides(strategy: Any) -> str:
    """Return the name of the module with ``_register_ddp_comm_hook`` in the strategy's package."""
    lightnings = next(c for c in type(strategy).__mro__ if c.__name__ == "DDPStrategy")
    return f"{lightnings.__module__.rpartition('.strategies.')[0]}.overrides.distributed"


def _give_subgroup(state: PostLocalSGDState, size: int) -> None:
    """Give local SGD the group of this host's replicas, before the first step.

    Its hook would make one at the step at which it starts, of as many ranks as CUDA has devices
    (torch 2.13, post_localSGD_hook.py and ``new_subgroups``). On a CPU, and where replicas use only
    some of the GPUs, that would be an error in mid-training.
    """
    if state.subgroup is None and state.post_local_gradient_allreduce:
        state.subgroup, _ = torch.distributed.new_subgroups(group_size=size)


class _Travelling:
    """A PowerSGDState on its way to replicas.

    Its own ``__setstate__`` takes the default process group, which does not exist yet while a
    replica loads its arguments (torch 2.13, powerSGD_hook.py).
    """

    def __init__(self, state: PowerSGDState) -> None:
        self.type = type(state)
        own = getattr(state, "__dict__", {})  # of a subclass without slots
        slots = {name for each in self.type.__mro__ for name in getattr(each, "__slots__", ())}
        self.fields = {name: getattr(state, name) for name in slots if hasattr(state, name)} | own
        self.fields["process_group"] = None

    def made(self) -> PowerSGDState:
        state = object.__new__(self.type)
        for name, value in self.fields.items():
            setattr(state, name, value)
        return state
