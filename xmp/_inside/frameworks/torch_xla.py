"""torch_xla (PJRT, 2.1 to 2.9) in a replica: replication set up as torch_xla's own spawn does it.

On TPU and Neuron the replicas are one XLA mesh and the collectives go through ``xla_model``. On
the CPU torch_xla has no mesh across processes: each replica is a world of one to it, and xmp's own
collectives go over gloo, for which the plan requires ``backend="gloo"``.
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

from xmp._os.imports import imported
from xmp._words.errors import PlanError
from xmp._words.framework import Members
from xmp._words.replica_info import ReplicaInfo

from ._torch_rendezvous import Rendezvous
from ._xla_wire import NO_GROUPS, MeshWire, XlaWire
from .torch_dist import TorchDist, group_is_there, planned_rendezvous, ready, torch_module

__all__ = ["TorchXla", "attach", "enter"]

_OPS = {"sum": "sum", "mean": "sum", "min": "min", "max": "max", "prod": "mul"}
_SCHEME = "xla"


def enter(info: ReplicaInfo) -> TorchXla:
    """Initialise the device, set replication, and form the process group if one is planned.

    Raises:
        RuntimeError: torch_xla cannot be imported, or the runtime's mesh is not the planned one.
    """
    _modules()
    framework = TorchXla(info, planned_rendezvous(info))
    return ready(framework, info, framework.replicate, framework.answer_rendezvous)


def attach(info: ReplicaInfo) -> TorchXla:
    return TorchXla(info, None)


@functools.cache
def _modules() -> Any:
    """Return torch_xla's modules and functions, imported when they are first needed."""
    try:
        xm = imported("torch_xla.core.xla_model")
        imported("torch_xla.distributed.xla_backend")  # registers the backend and its rendezvous
        xr = imported("torch_xla.runtime")
        pjrt = imported("torch_xla._internal.pjrt")
    except ImportError as error:
        raise RuntimeError(
            f"the replica needs torch_xla, which cannot be imported ({error}); install it "
            'with the torch of the same version (pip install torch_xla) or use runtime="cpu"'
        ) from error
    torch_xla = imported("torch_xla")
    device = getattr(torch_xla, "device", None) or xm.xla_device  # deprecated since 2.9
    sync = getattr(torch_xla, "sync", None) or xm.mark_step  # deprecated since 2.9
    return SimpleNamespace(xm=xm, xr=xr, pjrt=pjrt, device=device, sync=sync)


class TorchXla(TorchDist):
    """A replica's view of the XLA mesh, or of a gloo group; see ``_words.framework``."""

    def __init__(self, info: ReplicaInfo, rendezvous: Rendezvous | None) -> None:
        super().__init__(info, rendezvous, group_is_there())
        self._threads = int(info.settings.get("threads_per_process", "1"))
        # Under SPMD the hosts are one program, not a mesh of replicas.
        self._alone = info.world_size == 1 or "spmd" in info.settings
        self._meshed = not self._alone and info.settings.get("backend") != "gloo"
        self._give_back: Callable[[], None] = lambda: None
        self._batch: _Batch | None = None

    meet: Any = None
    """XLA's collectives have no way to meet over hosts with a time limit."""

    def device(self) -> Any:
        """Return ``torch.device("xla:0")``, or the thread's device if the process has several."""
        return _modules().device()

    def beside(self, info: ReplicaInfo) -> TorchXla:
        """Return the view of another replica of this process, in whose thread this is called.

        It sets the device of that thread: torch_xla 2.9 has one default device per thread
        (``_run_thread_per_device``).
        """
        import torch_xla

        device = _modules().xm.get_xla_supported_devices()[info.local_rank % self._threads]
        torch_xla._XLAC._xla_set_default_device(device)
        return TorchXla(info, None)

    def replicate(self) -> None:
        """Do what torch_xla 2.9's ``initialize_multiprocess`` or ``initialize_singleprocess`` does.

        ``configure_topology`` is left out: the plan has set its variables; it would query the
        metadata server again, and does not parse the four-part bounds of 7x.
        """
        xm, xr = _modules().xm, _modules().xr
        if "plugin" in self._info.settings:
            self._configure_plugin()
            return
        # Even on the CPU, the devices of one process are a mesh.
        apart = xr.device_type() == "CPU" and self._threads < self._info.world_size
        alone = self._alone or apart
        devices = [] if alone else xm.get_xla_supported_devices()
        xm.set_replication(self.device(), devices)
        if alone and self._meshed:
            raise RuntimeError(
                f"torch_xla on the CPU cannot connect {self._info.world_size} replicas; use "
                'nprocs=1, or backend="gloo" for xmp\'s own collectives'
            )
        if not alone:
            self._check_mesh("Check the TPU_* variables that `xmp plan` shows")

    def _configure_plugin(self) -> None:
        """Let torch_xla and its plug-in configure this process, as torch_xla's own spawn does."""
        info = self._info
        if info.world_size == 1:
            _modules().pjrt.initialize_singleprocess()
            return
        _modules().pjrt.initialize_multiprocess(info.local_rank, info.local_world_size)
        if self._meshed:
            plugin = info.settings["plugin"]
            self._check_mesh(f'Check the plug-in {plugin}, or use backend="gloo"')

    def _check_mesh(self, advice: str) -> None:
        xr, planned = _modules().xr, self._info.world_size
        if xr.world_size() != planned:
            raise RuntimeError(
                f"the XLA runtime formed a mesh of {xr.world_size()} devices, but the launch has "
                f"{planned} replicas: their sums would be wrong. {advice}"
            )
        xr._init_world_size_ordinal()  # else reading these breaks dynamo's graphs

    def synchronize(self) -> None:
        """Run what is pending, and wait until this replica's device has finished it."""
        modules = _modules()
        modules.sync()
        modules.xm.wait_device_ops()

    def ordinal(self) -> int:
        """Return the mesh's number of this replica; without a mesh its rank."""
        return int(_modules().xr.global_ordinal()) if self._meshed else self._info.rank

    def members(self, group: Any) -> Members | None:
        """Return, over gloo, what TorchDist does; None on the mesh.

        The mesh reduces over all replicas, or over a full partition of them, which one process
        group is not (torch_xla 2.9, ``all_reduce(groups=)``).
        """
        return None if self._meshed else super().members(group)

    def local_group(self) -> Any:
        """Return, over gloo, what TorchDist does; None on the mesh."""
        return None if self._meshed else super().local_group()

    def averaging_members(self, group: Any) -> Members:
        """Return the collectives that average gradients, on the mesh or over gloo.

        Raises:
            PlanError: under SPMD, or for a group on the mesh.
        """
        if "spmd" in self._info.settings:
            raise PlanError(
                "with XLA_USE_SPMD one program has all devices, and XLA averages the gradients of "
                "a sharded batch itself: leave data_parallel out",
                code="XMP-P15",
            )
        scope = self if group is None else self.members(group)
        if scope is None:
            raise PlanError(NO_GROUPS, code="XMP-P12")
        return scope

    def init_process_group(self, backend: str | None = None, timeout: float | None = None) -> None:
        """Form the process group; raise RuntimeError where replicas are threads.

        A process can be in a torch process group only once.
        """
        if self._threads > 1:
            raise RuntimeError(
                f"init_process_group: {self._threads} replicas are threads of one process, which "
                "can be in a torch process group only once; xmp's and xla_model's collectives "
                "work without one"
            )
        super().init_process_group(backend, timeout)

    def answer_rendezvous(self) -> None:
        """Make ``init_method="xla://"`` use the planned store.

        torch_xla would bind MASTER_PORT in the process of index 0, where xmp's listener is.
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
        """Wait until every replica calls this; torch's barrier does nothing on this backend."""
        if self._meshed:
            _modules().xm.rendezvous("xmp/barrier")
        else:
            super().barrier()

    def leave(self) -> None:
        """Destroy the process group and restore torch's rendezvous."""
        self._give_back()
        super().leave()

    def _place_in_group(self) -> tuple[int, int]:
        """Return rank and size in the group: on the mesh, the runtime's, as for collectives."""
        if not self._meshed:
            return super()._place_in_group()
        xr = _modules().xr
        return xr.global_ordinal(), xr.world_size()

    def _group(self) -> Any:
        """Return ``torch.distributed``, with a process group unless the mesh needs none."""
        return torch_module().distributed if self._meshed else super()._group()

    def _wire(self) -> Any:
        return self._mesh if self._meshed else XlaWire(torch_module(), self.device, self._within)

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
    """The buffers of one ``all_reduce``; the first ``wait`` makes one call for all."""

    op: str
    done: Callable[[], None]
    buffers: list[Any] = field(default_factory=list)

    def wait(self) -> None:
        """Issue the reduction; XLA runs it when a value is read."""
        if self.buffers:
            _modules().xm.all_reduce(self.op, self.buffers)
            self.buffers = []
            self.done()
