"""JAX in a replica of another runtime: it must not silently be a world of one.

There ``jax.distributed.initialize()`` without an address connects the replicas: all of them call
it, as JAX wants it, and the first finds the port. With a coordinator's address, a number of
processes or a way of detection the program has a world of its own, which is JAX's affair. A program
that uses JAX without either gets a warning, where xmp has chosen the runtime and may have missed
that JAX was meant (``settings["jax_apart"]``).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from xmp._inside import channel
from xmp._os import log, ports
from xmp._os.imports import on_import
from xmp._words.replica_info import ReplicaInfo
from xmp._words.types import PortNeed

from ._jax_world import JaxWorld

__all__ = ["JaxApart"]

_LOOPBACK = "127.0.0.1"
_PLACES = (
    *("coordinator_address", "coordinator_bind_address", "num_processes", "process_id"),
    "cluster_detection_method",
)


class JaxApart(JaxWorld):
    """The world that JAX's replicas form if the program asks for it; patches JAX once it is loaded.

    It acts only in the process that made it.
    """

    def __init__(self, info: ReplicaInfo) -> None:
        super().__init__(info, "")
        if info.settings.get("device_type") in ("cuda", "rocm"):  # JAX sees all replicas' devices
            self._ids = [int(info.settings.get("device_index", info.local_rank))]
        self._found = _client() is not None
        self._lease: ports.PortLease | None = None
        self._hooks = [on_import("jax._src.distributed", self._patch)]
        if info.world_size > 1 and info.settings.get("jax_apart"):
            self._hooks.append(on_import("jax._src.xla_bridge", self._watch))

    def join(self, **wishes: Any) -> None:
        """Agree on a port at the first call; then join as in every world."""
        import jax

        if not self._coordinator:
            self._coordinator = self._agreed()
            if not os.environ.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION"):
                jax.config.update("jax_cpu_collectives_implementation", "gloo")
        super().join(**wishes)

    def leave(self) -> None:
        """Leave together, and put JAX's functions back."""
        while self._hooks:
            self._hooks.pop()()
        super().leave()
        self._leave_own()
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def _leave_own(self) -> None:
        """Leave the world that the program has formed by itself, as the interpreter's end would.

        A replica ends without the interpreter's end (``os._exit``), and a coordinator that ends so
        would abort the others.
        """
        if not self._found and _client() is not None and os.getpid() == self._pid:
            sys.modules["jax._src.distributed"].shutdown()

    def _patch(self, distributed: ModuleType) -> None:
        if os.getpid() == self._pid:
            self.install(distributed)

    def _watch(self, xla_bridge: ModuleType) -> None:
        if os.getpid() == self._pid:
            self._undo.append(_before_first(xla_bridge, "backends", self._warn))

    def _concerns(self, given: Mapping[str, Any]) -> bool:
        if self._rounds:
            return True
        return not (os.environ.get("JAX_COORDINATOR_ADDRESS") or given.keys() & {*_PLACES})

    def _agreed(self) -> str:
        """Return the address at which rank 0 has reserved a port."""
        info, between = self._info, channel()
        if info.world_size == 1:
            return self._reserved()
        if info.world_size != info.local_world_size or between is None:
            raise RuntimeError(
                f"jax.distributed.initialize() without arguments: xmp's runtime {info.runtime!r} "
                f"does not connect JAX's {info.world_size} processes. Launch with "
                'runtime="jax" (xmp run --runtime jax), or give coordinator_address, num_processes '
                "and process_id"
            )
        address: str = between.share("jax/coordinator", self._reserved, owner=0)
        return address

    def _reserved(self) -> str:
        self._lease = ports.lease((PortNeed("coordinator", "hold", _LOOPBACK, 0, 0),))
        return f"{_LOOPBACK}:{self._lease.ports['coordinator']}"

    def _warn(self) -> None:
        """Warn once per host: the other replicas would only repeat it."""
        if os.getpid() != self._pid or _client() is not None:
            return
        between = channel()
        if between is None:
            self._say()
        else:
            between.share("jax/apart", self._say)

    def _say(self) -> None:
        info = self._info
        log.warning(
            "JAX is a world of one process in each of the %d replicas: xmp has chosen runtime %r, "
            'which does not connect them. For one mesh give runtime="jax" (xmp run --runtime jax), '
            "or call jax.distributed.initialize() before the first use of a device; with "
            "runtime=%r given by name this is not said",
            info.world_size, info.runtime, info.runtime,
        )  # fmt: skip


def _client() -> Any:
    """Return JAX's connection to a coordinator, if it is loaded and has one."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None)


def _before_first(module: Any, name: str, call: Callable[[], None]) -> Callable[[], None]:
    """Call ``call`` before the first call of the module's function; return what undoes this."""
    original = getattr(module, name)

    def restore() -> None:
        setattr(module, name, original)

    @functools.wraps(original)
    def first(*arguments: Any, **named: Any) -> Any:
        restore()
        call()
        return original(*arguments, **named)

    setattr(module, name, first)
    return restore
