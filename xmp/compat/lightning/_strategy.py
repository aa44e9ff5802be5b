"""The strategy of Lightning's Trainer: DDPStrategy, in replicas that xmp starts."""

from __future__ import annotations

from typing import Any

from ._options import split
from ._start import check_accelerator, is_started

__all__ = ["TrainerOnXmp", "register"]


class TrainerOnXmp:
    """DDP in replicas that xmp starts; in the processes of torchrun, Slurm or `xmp run`, in those.

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
    strategy_name = "xmp"

    def __init__(self, *args: Any, **options: Any) -> None:
        own, theirs = split(type(self), options)
        super().__init__(*args, **theirs)
        self._xmp_options = own

    def _configure_launcher(self) -> None:
        this: Any = self
        check_accelerator(this.accelerator, this.parallel_devices)
        if not is_started(this.cluster_environment):
            self._launcher = self._launcher_class(self, self._xmp_options)

    def begin_in_replica(self) -> None:
        """Take this replica's place, before any of Lightning's code runs in it."""
        this: Any = self
        this.set_world_ranks()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_xmp_options": {}}  # type: ignore[misc]


def register(registry: Any, strategy: Any) -> None:
    """Register the names of xmp's strategies; again does no harm."""
    for suffix, flags in _NAMES.items():
        registry.register(
            f"xmp{suffix}",
            strategy,
            description=f"DDP in replicas that xmp starts{' with ' + str(flags) if flags else ''}",
            override=True,
            **flags,
        )


_NAMES: dict[str, dict[str, Any]] = {
    "": {},
    "_find_unused_parameters_true": {"find_unused_parameters": True},
    "_find_unused_parameters_false": {"find_unused_parameters": False},
}
