"""The strategy and the launcher for the Fabric of ``lightning``, registered with it."""

from __future__ import annotations

from typing import Any

from lightning.fabric import wrappers
from lightning.fabric.strategies import STRATEGY_REGISTRY, DDPStrategy
from lightning.fabric.strategies.launchers import multiprocessing as launchers

from ._fabric import FabricLaunching, FabricOnXmp
from ._strategy import register

__all__ = ["XmpFabricLauncher", "XmpFabricStrategy"]


class XmpFabricLauncher(FabricLaunching, launchers._MultiProcessingLauncher):  # type: ignore[misc]
    """The launcher of a Fabric of ``lightning.fabric`` in xmp's replicas."""

    _lightnings: Any = launchers
    _wrappers: Any = wrappers


class XmpFabricStrategy(FabricOnXmp, DDPStrategy):  # type: ignore[misc]
    __doc__ = FabricOnXmp.__doc__
    _launcher_class = XmpFabricLauncher


register(STRATEGY_REGISTRY, XmpFabricStrategy)
