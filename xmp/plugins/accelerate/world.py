"""accelerate's state in a replica: it has the world of the launch, or the replica fails.

On a host without a device that accelerate knows, ``PartialState()`` makes a world of one, whatever
RANK and WORLD_SIZE say; only ``cpu=True`` makes it read them, and of the classes on top of it only
``AcceleratorState`` takes that from ACCELERATE_USE_CPU (accelerate 1.15, state.py,
``PartialState._prepare_backend``). Each replica would train alone, and nothing would say so.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from xmp._os.imports import on_import
from xmp._words.replica_info import ReplicaInfo

__all__ = ["AccelerateWorld"]

_MODULE = "accelerate.state"
_JAX = "jax"


class AccelerateWorld:
    """A patch by which ``PartialState`` uses the CPU where the replica does, until ``remove``."""

    def __init__(self, info: ReplicaInfo) -> None:
        self._info = info
        self._pid = 0
        self._withdraw: Callable[[], None] = lambda: None
        self._patched: Any = None
        self._original: Callable[..., None] | None = None

    def install(self) -> None:
        """Patch ``PartialState``, now or when accelerate is imported; do nothing in a world of one.

        Raises:
            RuntimeError: the state exists already, with another world.
        """
        if self._info.world_size == 1:
            return
        self._refuse_another_world()
        self._pid = os.getpid()
        if self._info.settings.get("device_type") == "cpu" or self._info.runtime == _JAX:
            self._withdraw = on_import(_MODULE, self._patch)

    def remove(self) -> None:
        """Restore accelerate's own method."""
        self._withdraw()
        self._withdraw = lambda: None  # the hook refers to this object
        if self._original is not None:
            self._patched.__init__ = self._original
            self._original = None

    def _patch(self, module: ModuleType) -> None:
        self._patched = module.PartialState
        self._original = original = module.PartialState.__init__

        @functools.wraps(original)
        def init(state: Any, cpu: bool = False, **kwargs: Any) -> None:
            # A process that the replica forks is not in the launch's world.
            original(state, cpu=cpu or (os.getpid() == self._pid and self._on_cpu()), **kwargs)

        self._patched.__init__ = init

    def _on_cpu(self) -> bool:
        """Return whether torch uses the CPU; in JAX's replicas it may have the GPUs as well."""
        return self._info.runtime != _JAX or not sys.modules["torch"].cuda.is_available()

    def _refuse_another_world(self) -> None:
        module = sys.modules.get(_MODULE)
        state = module.PartialState._shared_state if module is not None else {}
        if not state:
            return
        found, info = (state.get("num_processes"), state.get("process_index")), self._info
        if found != (info.world_size, info.rank):
            raise RuntimeError(
                f"accelerate's state in this process is that of rank {found[1]} in a world of "
                f"{found[0]}, but this is replica {info.rank} of {info.world_size}: it would train "
                "apart. Something makes an Accelerator, a PartialState or TrainingArguments before "
                "the function starts, such as the script at its top level. Make it inside the "
                'function, or under `if __name__ == "__main__":`.'
            )
