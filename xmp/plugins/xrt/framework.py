"""Legacy torch_xla (XRT, up to 2.0) in a replica: the calls of its own spawn, in the same order.

It follows pytorch/xla's ``distributed/xla_multiprocessing.py`` at b6dc88078d: it sets up
replication in a world of several, and for a function that raises it writes two messages to standard
error and exits with code 17. torch_xla of that age can no longer be installed: the tests run a
stand-in with its interface.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from xmp._inside.frameworks._torch_groups import refuse_backend
from xmp._inside.frameworks._xla_wire import NO_GROUPS, MeshWire
from xmp._inside.frameworks.torch_dist import TorchDist, torch_module
from xmp._os.imports import imported
from xmp._words.errors import PlanError
from xmp._words.framework import Members
from xmp._words.replica_info import ReplicaInfo

__all__ = ["Xrt", "attach", "enter"]

FAILED = 17
"""The exit code of torch_xla's own replicas; scripts around it check for it."""


def enter(info: ReplicaInfo) -> Xrt:
    """Set replication up: the first call that may start the XRT client.

    Raises:
        RuntimeError: torch_xla cannot be imported, or has no XRT.
    """
    xm = _xla_model()
    if xm.xrt_world_size() > 1:
        device = str(xm.xla_device())  # before 1.7 a name is needed
        xm.set_replication(device, [device])
    return Xrt(info)


def attach(info: ReplicaInfo) -> Xrt:
    """Return the collectives for a process that another launcher started; change nothing in it."""
    return Xrt(info)


def _xla_model() -> Any:
    try:
        xm = imported("torch_xla.core.xla_model")
    except ImportError as error:
        raise RuntimeError(
            f'runtime="xrt" needs torch_xla up to 2.0, which cannot be imported ({error})'
        ) from error
    if not hasattr(xm, "xrt_world_size"):
        raise RuntimeError('this torch_xla has no XRT (2.1 removed it); use runtime="pjrt"')
    return xm


class Xrt(TorchDist):
    """A replica's view of the XRT mesh; see ``xmp._words.framework.Framework``."""

    def __init__(self, info: ReplicaInfo) -> None:
        super().__init__(info, None)
        self._service = _ServiceWire(torch_module(), _xla_model(), info, self.device)

    def device(self) -> Any:
        """Return ``xm.xla_device()``, the only device of this process."""
        return _xla_model().xla_device()

    def synchronize(self) -> None:
        """Run what is pending, and wait until this replica's device has done it."""
        xm = _xla_model()
        xm.mark_step()
        xm.wait_device_ops()

    def members(self, group: Any) -> Members | None:
        """Return None: the mesh service connects all replicas, without process groups."""
        return None

    def local_group(self) -> Any:
        """Return None, as ``members`` does."""
        return None

    def averaging_members(self, group: Any) -> Members:
        """Return the collectives of the mesh; raise PlanError for a group."""
        if group is not None:
            raise PlanError(NO_GROUPS, code="XMP-P12")
        return self

    def init_process_group(self, backend: str | None = None, timeout: float | None = None) -> None:
        """Do nothing: XRT's mesh service connects the replicas, without torch."""
        refuse_backend(backend, "xrt")

    def barrier(self) -> None:
        """Wait until every replica has called this."""
        self._service.meet()

    def failed(self, error: BaseException) -> int:
        """Write an exception to standard error as torch_xla does; return torch_xla's exit code."""
        device = os.environ.get("XRT_MULTI_PROCESSING_DEVICE", "")
        sys.stderr.write(f"Exception in device={device}: {error}\n")
        traceback.print_exception(type(error), error, error.__traceback__, limit=16)
        return FAILED

    def _wire(self) -> Any:
        return self._service

    def _reduce(self, buffer: Any, op: str) -> Any:
        kinds = {"mean": "sum", "prod": "mul"}
        _xla_model().all_reduce(kinds.get(op, op), [buffer])
        return _Done()


class _Done:
    def wait(self) -> None:
        """Do nothing: XLA runs the reduction when the value is read."""


class _ServiceWire(MeshWire):
    """The wire of the mesh service: each rank sends bytes and gets those of all, in rank order."""

    _tags = itertools.count()

    def meet(self, payload: bytes = b"") -> Sequence[bytes]:
        """Return the payloads of all replicas when all have called this; each call has its tag."""
        found: Sequence[bytes] = self._xm.rendezvous(f"xmp/{next(self._tags)}", payload)
        return found

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        """Return the parts of all ranks, sent as they are: the service accepts any lengths."""
        mine = b"" if part is None else part.numpy().tobytes()
        return [self._part(each) for each in self.meet(mine)]

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        """Return the part of ``src``; the other ranks send nothing."""
        return self._part(self.meet(b"" if part is None else part.numpy().tobytes())[src])

    def _part(self, data: bytes) -> Any:
        return self.part(memoryview(data)) if data else self._empty(0)
