"""The strategy of Lightning's Trainer: DDPStrategy, in replicas that xmp starts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from xmp._calls.options import SPAWN
from xmp._calls.spawn import spawn
from xmp._words.errors import XmpError

from ._start import check_accelerator, check_place, is_started

__all__ = ["SyncOnCpu", "TrainerOnXmp", "for_cpu", "register", "shows_options", "split"]


class TrainerOnXmp:
    """DDP in replicas that xmp starts, or in processes that torchrun, Slurm or `xmp run` started.

    Args:
        options: those of ``DDPStrategy`` (``ddp_comm_hook``, ``process_group_backend``, ``timeout``
            …) and of ``DistributedDataParallel``, and of ``xmp.spawn``: ``start_method env threads
            bind start_timeout hang_timeout grace max_restarts log_dir prefix show progress
            events``. ``timeout`` is the process group's, a timedelta; the seconds that the whole
            launch may take are ``launch_timeout``.

    Raises:
        TypeError: an unknown option, or a ``timeout`` that is no timedelta.
    """

    _launcher_class: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        own, theirs = split(type(self), options)
        super().__init__(*args, **theirs)
        self._xmp_options = own

    def _configure_launcher(self) -> None:
        this: Any = self
        check_accelerator(this.accelerator, this.parallel_devices)
        if not is_started(this):
            self._launcher = self._launcher_class(self, self._xmp_options)

    def begin_in_replica(self) -> None:
        """Take this replica's place, before any of Lightning's code runs in it."""
        this: Any = self
        device = this.parallel_devices[0]
        if device.type != "cpu":  # a replica sees the launch's devices, from 0
            this.parallel_devices = [
                type(device)(device.type, index) for index in range(this.num_processes)
            ]
        this.set_world_ranks()
        check_place(this)

    def setup_environment(self) -> None:
        """Do as Lightning's, after the check of the world's size that its script launcher makes.

        The check raises ValueError (lightning 2.6, ClusterEnvironment.validate_settings).
        """
        this: Any = self
        if this.launcher is None:
            this.cluster_environment.validate_settings(this.num_processes, this.num_nodes)
        super().setup_environment()  # type: ignore[misc]

    def setup(self, trainer: Any) -> None:
        """Do as Lightning's, but let ``sync_batchnorm`` work on the CPU as well."""
        this: Any = self
        if this._layer_sync is not None and this.root_device.type == "cpu":
            this._layer_sync = for_cpu(this._layer_sync)
        super().setup(trainer)  # type: ignore[misc]

    def on_exception(self, exception: BaseException) -> None:
        """Add advice where DDP has found parameters without a gradient."""
        if isinstance(exception, XmpError):
            if _UNUSED in str(exception):
                exception._add(_ADVICE)
            return
        exception.args = tuple(
            _ADVICE if isinstance(each, str) and _UNUSED in each else each
            for each in exception.args
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_xmp_options": {}}  # type: ignore[misc]


def register(registry: Any, strategy: Any) -> None:
    """Register xmp's strategy under its names; doing so again does no harm."""
    shows_options(strategy)
    for suffix, flags in _NAMES.items():
        registry.register(
            f"xmp{suffix}",
            strategy,
            description=f"DDP in replicas that xmp starts{' with ' + str(flags) if flags else ''}",
            override=True,
            **flags,
        )


_UNUSED = "Expected to have finished reduction in the prior iteration"
"""A part of torch's message (torch 2.13, torch/csrc/distributed/c10d/reducer.cpp)."""

_ADVICE = (
    "It looks like your LightningModule has parameters that were not used in producing the loss "
    "returned by training_step. If that is intended, have DDP look for them: "
    "Trainer(strategy='xmp_find_unused_parameters_true'), or "
    "XmpStrategy(find_unused_parameters=True)."
)

_NAMES: dict[str, dict[str, Any]] = {
    "": {},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
}


_LIGHTNINGS = ("nprocs", "daemon", "runtime", "devices", "backend", "seed", "timeout")
"""What Lightning itself says, or has another name for."""
_OF_SPAWN = tuple(each.name for each in SPAWN if each.name not in _LIGHTNINGS)
_NOT_OPTIONS = ("self", "args", "options", "kwargs", "module", "device_ids")
_BY_NAME = inspect.Parameter.KEYWORD_ONLY
_RENAMED = {"launch_timeout": "timeout"}
"""Options that ``xmp.spawn`` names otherwise: ``timeout`` of DDPStrategy is the process group's."""


def shows_options(strategy: type) -> None:
    """Have ``help()`` and editors show the options of a strategy of xmp's, each by its name."""
    ours = inspect.signature(spawn).parameters
    own = {n: ours[_RENAMED.get(n, n)] for n in (*_OF_SPAWN, *_RENAMED)}
    shown = {each.name: each for each in _parameters(strategy)}
    shown |= {n: each.replace(name=n, kind=_BY_NAME) for n, each in own.items()}
    strategy.__signature__ = inspect.Signature([*shown.values()])  # type: ignore[attr-defined]


def split(strategy: type, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of ``xmp.spawn``, under its names, and those of Lightning's strategy.

    Raise TypeError for an option that neither has.
    """
    own = {name: options[name] for name in _OF_SPAWN if name in options}
    own |= {name: options[given] for given, name in _RENAMED.items() if given in options}
    theirs = {n: v for n, v in options.items() if n not in _OF_SPAWN and n not in _RENAMED}
    _check(strategy, theirs)
    return own, theirs


def _check(strategy: type, theirs: Mapping[str, Any]) -> None:
    known = _of_lightning(strategy)
    for name in theirs:
        if name not in known:
            near = get_close_matches(name, [*known, *_OF_SPAWN, *_RENAMED], 1)
            meant = f". Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"XmpStrategy() got an unexpected keyword argument {name!r}{meant}")
    limit = theirs.get("timeout")
    if limit is not None and not isinstance(limit, timedelta):
        raise TypeError(
            f"timeout={limit!r}: as in DDPStrategy this is the time limit of the process group, a "
            "datetime.timedelta. Give the seconds that the whole launch may take as launch_timeout="
        )


def _of_lightning(strategy: type) -> set[str]:
    """Return the parameters of Lightning's strategy, and of DDP, to which it passes the others."""
    return {each.name for each in _parameters(strategy)}


def _parameters(strategy: type) -> Iterator[inspect.Parameter]:
    from torch.nn.parallel import DistributedDataParallel

    owners = (*strategy.__mro__, DistributedDataParallel)
    makers = [vars(each)["__init__"] for each in owners if "__init__" in vars(each)]
    for maker in makers:
        for each in inspect.signature(maker).parameters.values():
            if each.name not in _NOT_OPTIONS:
                yield each.replace(kind=_BY_NAME)


def for_cpu(layer_sync: Any) -> Any:
    """Replace Lightning's own TorchSyncBatchNorm by one for the CPU; return a user's as it is."""
    return SyncOnCpu() if type(layer_sync).__name__ == "TorchSyncBatchNorm" else layer_sync


class SyncOnCpu:
    """The methods of Lightning's LayerSync, with xmp's BatchNorm over all replicas."""

    def __init__(self) -> None:
        self._layers: dict[str, Any] = {}
        """The user's layers by their names: they share parameters and buffers with xmp's."""

    def apply(self, model: Any) -> Any:
        """Return the model with BatchNorm layers whose batch is that of all replicas."""
        from torch.nn.modules.batchnorm import _BatchNorm

        from xmp.plugins.data_parallel._batch_norm import synchronized

        self._layers = {
            n: each for n, each in model.named_modules() if isinstance(each, _BatchNorm)
        }
        return synchronized(model, None)

    def revert(self, model: Any) -> Any:
        """Put the user's own layers, with what they have learnt, back into the model; return it."""
        for name, layer in self._layers.items():
            parent, _, last = name.rpartition(".")
            current = model.get_submodule(name)
            layer.training = current.training
            model.get_submodule(parent).add_module(last, layer)
        return model
