"""The strategy and the launcher for the Trainer of ``pytorch_lightning``, registered with it."""

from __future__ import annotations

from typing import Any

from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
from pytorch_lightning.strategies.launchers import multiprocessing as launchers

from ._hooks import CommHooks
from ._launcher import TrainerLaunching
from ._strategy import TrainerOnXmp, register

__all__ = ["XmpLauncher", "XmpStrategy"]


class XmpLauncher(TrainerLaunching, launchers._MultiProcessingLauncher):  # type: ignore[misc]
    """The launcher of a Trainer of ``pytorch_lightning`` in xmp's replicas."""

    _lightnings: Any = launchers


class XmpStrategy(TrainerOnXmp, CommHooks, DDPStrategy):  # type: ignore[misc]
    __doc__ = TrainerOnXmp.__doc__
    _launcher_class = XmpLauncher


register(StrategyRegistry, XmpStrategy)
