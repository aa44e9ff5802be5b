"""The strategy of Lightning's Trainer: DDPStrategy, in replicas that xmp starts."""

from __future__ import annotations

from typing import Any

from xmp._words.errors import XmpError

from ._batch_norm import for_cpu
from ._options import shows_options, split
from ._start import check_accelerator, check_place, is_started

__all__ = ["TrainerOnXmp", "register"]


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
