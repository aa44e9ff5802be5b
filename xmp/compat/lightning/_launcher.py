"""A launcher of Lightning's Trainer that starts it by xmp; what comes back is Lightning's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._start import start

__all__ = ["TrainerLaunching"]


class TrainerLaunching:
    """Mixed into Lightning's ``_MultiProcessingLauncher``, whose results it brings back."""

    _lightnings: Any
    """The module with Lightning's own launcher."""

    def __init__(self, strategy: Any, options: dict[str, Any]) -> None:
        # Lightning's own __init__ checks the start method by multiprocessing's names.
        self._strategy = strategy
        self._start_method = options.get("start_method")
        self._options = options
        self._already_fit = False
        self.procs: list[Any] = []
        """The replicas of the latest launch; xmp's names for them are those of ``Process``."""

    @property
    def is_interactive_compatible(self) -> bool:
        """True: a cell of a notebook can launch."""
        return True

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any
    ) -> Any:
        """Run ``function`` in every replica; returns what that of rank 0 returned."""
        snapshot = self._lightnings._GlobalStateSnapshot.capture()
        call = (self, trainer, function, args, kwargs, snapshot)
        context = start(self._strategy, run_in_replica, call, self._options)
        self.procs = context.processes
        output = context.results()[0]
        if trainer is None:
            return output
        self._recover_results_in_main_process(output, trainer)  # type: ignore[attr-defined]
        return output.trainer_results

    def __getstate__(self) -> dict[str, Any]:
        # Replicas need neither; an observer's function might not be picklable.
        return {**self.__dict__, "procs": [], "_options": {}}


def run_in_replica(
    launcher: Any,
    trainer: Any,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    snapshot: Any,
) -> Any:
    """The body of each replica, as Lightning's ``_wrapping_function`` has it."""
    lightnings, strategy = launcher._lightnings, launcher._strategy
    snapshot.restore()
    args, kwargs = lightnings._disable_module_memory_sharing((args, kwargs))
    strategy.begin_in_replica()
    results = function(*args, **kwargs)
    if trainer is not None:
        results = launcher._collect_rank_zero_results(trainer, results)
    return lightnings.move_data_to_device(results, "cpu") if strategy.local_rank == 0 else None
