"""torch_xla (PJRT, 2.1 to 2.9) in a replica: replication set up as torch_xla's own spawn does it.

On TPU and Neuron the replicas are one XLA mesh and the collectives go through ``xla_model``. On
the CPU torch_xla has no mesh across processes: there each replica is a world of one to it, and
xmp's own collectives go over gloo, for which the plan wants ``backend="gloo"`` said.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from xmp._types import ReplicaInfo

from ._torch_rendezvous import Rendezvous
from ._xla_wire import MeshWire, XlaWire
from .torch_dist import TorchDist, group_is_there, planned_rendezvous, ready, torch_module

__all__ = ["TorchXla", "attach", "enter"]

_OPS = {"sum": "sum", "mean": "sum", "min": "min", "max": "max", "prod": "mul"}
_SCHEME = "xla"


def enter(info: ReplicaInfo) -> TorchXla:
    """Bring the device up, set replication, and form the process group if one was asked for.

    Raises:
        RuntimeError: torch_xla does not import, or the runtime found another mesh than planned.
    """
    _modules()
    framework = TorchXla(info, planned_rendezvous(info))
    return ready(framework, info, framework.replicate, framework.answer_rendezvous)


def attach(info: ReplicaInfo) -> TorchXla:
    """The same collectives in a process that another launcher started; changes nothing."""
    return TorchXla(info, None)


@functools.cache
def _modules() -> Any:
    """``xm`` and ``xr``, imported when they are first needed."""
    try:
        import torch_xla.core.xla_model
        import torch_xla.distributed.xla_backend  # registers the backend and its rendezvous
        import torch_xla.runtime
    except ImportError as error:
        raise RuntimeError(
            f"this needs torch_xla in the replica, which does not import ({error}); install it "
            'with the torch of the same version (pip install "xmp[xla]") or use runtime="cpu"'
        ) from error
    return SimpleNamespace(xm=torch_xla.core.xla_model, xr=torch_xla.runtime)


class TorchXla(TorchDist):
    """A replica's view of the XLA mesh, or of a gloo group; see ``xmp._types.Framework``."""

    def __init__(self, info: ReplicaInfo, rendezvous: Rendezvous | None) -> None:
        super().__init__(info, rendezvous, group_is_there())
        self._threads = int(info.settings.get("threads_per_process", "1"))
        self._meshed = info.world_size > 1 and info.settings.get("backend") != "gloo"
        self._give_back: Callable[[], None] = lambda: None
        self._batch: _Batch | None = None

    def device(self) -> Any:
        """``torch.device("xla:0")``: a process sees one device, a thread has its own."""
        return _modules().xm.xla_device()

    def beside(self, info: ReplicaInfo) -> TorchXla:
        """The view of another replica of this process, asked in its thread, which gets its device.

        torch_xla 2.9 keeps the default device by thread (``_run_thread_per_device``).
        """
        import torch_xla

        device = _modules().xm.get_xla_supported_devices()[info.local_rank % self._threads]
        torch_xla._XLAC._xla_set_default_device(device)
        return TorchXla(info, None)

    def replicate(self) -> None:
        """What torch_xla 2.9's ``initialize_multiprocess`` or ``initialize_singleprocess`` does.

        Except their ``configure_topology``: the plan has set all of its variables, while it would
        ask the metadata server again, and does not parse the four-part bounds of 7x.
        """
        xm, xr = _modules().xm, _modules().xr
        # The devices of one process are a mesh on the CPU, too.
        apart = xr.device_type() == "CPU" and self._threads < self._info.world_size
        alone = self._info.world_size == 1 or apart
        devices = [] if alone else xm.get_xla_supported_devices()
        xm.set_replication(self.device(), devices)
        if alone and self._meshed:
            raise RuntimeError(
                f"torch_xla on the CPU cannot connect {self._info.world_size} replicas; use "
                'nprocs=1, or backend="gloo" for xmp\'s own collectives'
            )
        if not alone and xr.world_size() != self._info.world_size:
            raise RuntimeError(
                f"the XLA runtime formed a mesh of {xr.world_size()} devices, the launch has "
                f"{self._info.world_size} replicas: their sums would be wrong. Look at the TPU_* "
                "variables of `xmp plan`"
            )
        if not alone:
            xr._init_world_size_ordinal()  # dynamo breaks its graphs where these are asked for

    def init_process_group(self, timeout: float | None = None) -> None:
        """Form the group; a process can be in it once, so threads are refused."""
        if self._threads > 1:
            raise RuntimeError(
                f"init_process_group: {self._threads} replicas are threads of one process, which "
                "can be in a torch process group only once; xmp's and xla_model's collectives "
                "work without one"
            )
        super().init_process_group(timeout)

    def answer_rendezvous(self) -> None:
        """Let ``init_method="xla://"`` find the planned store.

        torch_xla would bind MASTER_PORT on the process of index 0, where our listener lies.
        """
        if self._rendezvous is None:
            return
        # By its full name: the attribute of torch.distributed is a function.
        handlers = sys.modules["torch.distributed.rendezvous"].__dict__["_rendezvous_handlers"]
        own = handlers[_SCHEME]
        handlers[_SCHEME] = functools.partial(self._meet, own)
        self._give_back = functools.partial(handlers.__setitem__, _SCHEME, own)

    def _meet(
        self,
        own: Callable[..., Iterator[Any]],
        url: str,
        timeout: timedelta = timedelta(minutes=30),
        **named: Any,
    ) -> Iterator[Any]:
        xr = _modules().xr
        address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "0")
        planned = self._rendezvous is not None and self._rendezvous.is_planned(address, int(port))
        if self._rendezvous is None or not planned or xr.is_spmd():
            yield from own(url, timeout=timeout, **named)
            return
        rank, size = self._place_in_group()
        yield self._rendezvous.join(size, timeout), rank, size

    def barrier(self) -> None:
        """Wait until every replica is here; torch's own barrier does nothing on this backend."""
        if self._meshed:
            _modules().xm.rendezvous("xmp/barrier")
        else:
            super().barrier()

    def leave(self) -> None:
        """Take the group down, give torch its rendezvous back."""
        self._give_back()
        super().leave()

    def _place_in_group(self) -> tuple[int, int]:
        """A group of XLA's backend counts as the runtime does, since its collectives do."""
        if not self._meshed:
            return super()._place_in_group()
        xr = _modules().xr
        return xr.global_ordinal(), xr.world_size()

    def _group(self) -> Any:
        """The mesh needs no process group."""
        return torch_module().distributed if self._meshed else super()._group()

    def _wire(self) -> Any:
        return self._mesh if self._meshed else XlaWire(torch_module(), self.device)

    @functools.cached_property
    def _mesh(self) -> MeshWire:
        return MeshWire(torch_module(), _modules().xm, self._info, self.device)

    def _reduce(self, buffer: Any, op: str) -> Any:
        if not self._meshed:
            return super()._reduce(buffer, op)
        if self._batch is None:
            self._batch = _Batch(_OPS[op], self._end_batch)
        self._batch.buffers.append(buffer)
        return self._batch

    def _end_batch(self) -> None:
        self._batch = None


@dataclass
class _Batch:
    """The buffers of one ``all_reduce``: one call for all, at the first ``wait``."""

    op: str
    done: Callable[[], None]
    buffers: list[Any] = field(default_factory=list)

    def wait(self) -> None:
        """XLA itself runs it when a value is asked for."""
        if self.buffers:
            _modules().xm.all_reduce(self.op, self.buffers)
            self.buffers = []
            self.done()
