"""Lightning's Fabric on xmp: its strategy, and the launcher whose function runs in replicas."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from ._start import Launching
from ._strategy import TrainerOnXmp

__all__ = ["FabricLaunching", "FabricOnXmp"]

_WRAPPED = {
    "_FabricModule": "module",
    "_FabricOptimizer": "optimizer",
    "_FabricDataLoader": "_dataloader",
}
"""Fabric's wrappers, and the attribute in which each keeps what the program gave it."""


class FabricLaunching(Launching):
    """A mixin for ``_MultiProcessingLauncher``, with which Fabric requires a function to launch."""

    _wrappers: Any
    """The module with the classes in which Fabric wraps models, optimizers and data loaders."""

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``function`` in every replica; return what local rank 0 returned, on the CPU.

        What Fabric has wrapped comes back as the program's own model, optimizer or data loader.
        Raise what ``xmp.spawn`` raises.
        """
        context = self._started(run_in_replica, _as_the_users(function), args, kwargs, {})
        return context.results()[0]

    def unwrapped(self, results: Any) -> Any:
        """Replace what Fabric has wrapped, in any collection, by what ``setup`` was given.

        DistributedDataParallel could not be loaded where there is no process group.
        """
        for kind, attribute in _WRAPPED.items():
            wrapper, own = getattr(self._wrappers, kind), operator.attrgetter(attribute)
            results = self._lightnings.apply_to_collection(results, wrapper, own)
        return results


def _as_the_users(function: Any) -> Any:
    """Give Fabric's ``partial`` of the user's function the name and signature of that function."""
    inner = getattr(function, "args", ())
    if inner and callable(inner[0]):
        function = functools.update_wrapper(
            function, inner[0], assigned=("__qualname__",), updated=()
        )
    return function


def run_in_replica(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    launcher: Any,
    snapshot: Any,
    function: Callable[..., Any],
) -> Any:
    """Run ``function`` in a replica, as Lightning's ``_wrapping_function`` does."""
    lightnings, strategy = launcher._lightnings, launcher._strategy
    snapshot.restore()
    args, kwargs = lightnings._disable_module_memory_sharing((args, kwargs))
    strategy.begin_in_replica()
    results = function(*args, **kwargs)
    if strategy.local_rank != 0:
        return None
    return lightnings.move_data_to_device(launcher.unwrapped(results), "cpu")


class FabricOnXmp(TrainerOnXmp):
    __doc__ = TrainerOnXmp.__doc__

    def set_world_ranks(self) -> None:
        """Set the ranks, by the name that the Trainer's strategy has for it."""
        this: Any = self
        this._set_world_ranks()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_xmp_options": {}}
