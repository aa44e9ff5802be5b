"""The launcher that starts Lightning's Trainer by xmp, and brings Lightning's results back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from xmp._words.errors import PlanError

from ._hooks import check_hooks
from ._results import restore, state_of
from ._start import Launching

__all__ = ["TrainerLaunching"]

_STATE = "xmp"


class TrainerLaunching(Launching):
    """A mixin for Lightning's ``_MultiProcessingLauncher``, whose results it brings back."""

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any
    ) -> Any:
        """Run ``function`` in every replica; return what it returned on rank 0.

        Raise what ``xmp.spawn`` raises.
        """
        if trainer is not None and trainer.training:
            check_hooks(self._strategy)
            _refuse_search(trainer)
        context = self._started(run_in_replica, function, args, kwargs, {"trainer": trainer})
        output = context.results()[0]
        if trainer is None:
            return output
        self._recover_results_in_main_process(output, trainer)
        return output.trainer_results

    def _recover_results_in_main_process(self, output: Any, trainer: Any) -> None:
        super()._recover_results_in_main_process(output, trainer)  # type: ignore[misc]
        if output.weights_path is not None:  # Lightning 2.6 leaves the folder that it made
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(output.weights_path))

    def get_extra_results(self, trainer: Any) -> dict[str, Any]:
        """Return what rank 0 sends besides results: Lightning's extras and the Trainer's state."""
        theirs: dict[str, Any] = super().get_extra_results(trainer)  # type: ignore[misc]
        return {**theirs, _STATE: state_of(trainer)}

    def update_main_process_results(self, trainer: Any, extra: dict[str, Any]) -> None:
        """Give this process's Trainer what ``get_extra_results`` returned on rank 0."""
        trainer._logger_connector.reset_metrics()  # else an earlier fit's would stay after a test
        super().update_main_process_results(trainer, extra)  # type: ignore[misc]
        restore(trainer, extra[_STATE])


def _refuse_search(trainer: Any) -> None:
    """Raise PlanError for ``Tuner.lr_find``, whose result would stay in the replicas.

    ``lr_find`` ends the fit by an exception, and reads a callback of this process (Lightning 2.6,
    tuner/tuning.py). The callback is removed here; ``lr_find`` does that only after a success.
    """
    for each in trainer.callbacks:
        if getattr(each, "_early_exit", False):
            trainer.callbacks = [other for other in trainer.callbacks if other is not each]
            name = type(each).__name__
            raise PlanError(
                f"a Tuner's {name} finds nothing with strategy='xmp': its result would stay in the "
                "replicas. Search with Trainer(devices=1, strategy='auto'), or give "
                f"Trainer(callbacks=[{name}()]), which searches in the replicas.",
                code="XMP-P02",
            )


def run_in_replica(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    trainer: Any,
    launcher: Any,
    snapshot: Any,
    function: Callable[..., Any],
) -> Any:
    """Run ``function`` in a replica, as Lightning's ``_wrapping_function`` does."""
    lightnings, strategy = launcher._lightnings, launcher._strategy
    snapshot.restore()
    lightnings._disable_module_memory_sharing((args, kwargs, _modules_of_callbacks(trainer)))
    strategy.begin_in_replica()
    results = function(*args, **kwargs)
    if trainer is not None:
        results = launcher._collect_rank_zero_results(trainer, results)
    return lightnings.move_data_to_device(results, "cpu") if strategy.local_rank == 0 else None


def _modules_of_callbacks(trainer: Any) -> list[Any]:
    """Return the modules in callbacks, such as averaged weights: each replica has its own."""
    from torch.nn import Module

    callbacks = [] if trainer is None else trainer.callbacks
    return [
        value for each in callbacks for value in vars(each).values() if isinstance(value, Module)
    ]
