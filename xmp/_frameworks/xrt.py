"""Legacy torch_xla (XRT, up to 2.0) in a replica: its own calls, in its own order, and no more.

After pytorch/xla's ``distributed/xla_multiprocessing.py`` at b6dc88078d: replication in a world of
several, and for a function that raises two messages on standard error and exit code 17.
torch_xla of that age cannot be installed any more: a stand-in of its shape is what this was run on.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from xmp._types import ReplicaInfo

from ._xla_wire import MeshWire
from .torch_dist import TorchDist, torch_module

__all__ = ["Xrt", "attach", "enter"]

FAILED = 17
"""What torch_xla's own replicas exit with; scripts around it look for that."""


def enter(info: ReplicaInfo) -> Xrt:
    """Set replication up: the first call that may start the XRT client.

    Raises:
        RuntimeError: torch_xla does not import, or is one without XRT.
    """
    xm = _xla_model()
    if xm.xrt_world_size() > 1:
        device = str(xm.xla_device())  # before 1.7 a name was wanted, later both are taken
        xm.set_replication(device, [device])
    return Xrt(info)


def attach(info: ReplicaInfo) -> Xrt:
    """The same collectives in a process that another launcher started; changes nothing."""
    return Xrt(info)


def _xla_model() -> Any:
    try:
        import torch_xla.core.xla_model as xm
    except ImportError as error:
        raise RuntimeError(
            f'runtime="xrt" needs torch_xla up to 2.0, which does not import ({error})'
        ) from error
    if not hasattr(xm, "xrt_world_size"):
        raise RuntimeError('this torch_xla has no XRT any more (2.1 dropped it): runtime="pjrt"')
    return xm


class Xrt(TorchDist):
    """A replica's view of the XRT mesh; see ``xmp._types.Framework``."""

    def __init__(self, info: ReplicaInfo) -> None:
        super().__init__(info, None)
        self._service = _ServiceWire(torch_module(), _xla_model(), info, self.device)

    def device(self) -> Any:
        """``xm.xla_device()``: the one that this process was given."""
        return _xla_model().xla_device()

    def init_process_group(self, timeout: float | None = None) -> None:
        """Nothing: XRT's mesh service has joined the replicas, and torch has no part in it."""

    def barrier(self) -> None:
        """Wait until every replica is here."""
        self._service.meet()

    def failed(self, error: BaseException) -> int:
        """What torch_xla says of an exception, on standard error; the exit code after it."""
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
        """XLA runs it when the value is asked for."""


class _ServiceWire(MeshWire):
    """Through the mesh service, which takes bytes and gives them back by ordinal: by rank."""

    _tags = itertools.count()

    def meet(self, payload: bytes = b"") -> Sequence[bytes]:
        """What every replica brings; each meeting has a name of its own."""
        found: Sequence[bytes] = self._xm.rendezvous(f"xmp/{next(self._tags)}", payload)
        return found

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        """As they are: the service does not mind different lengths."""
        mine = b"" if part is None else part.numpy().tobytes()
        return [self._part(each) for each in self.meet(mine)]

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        """From ``src``; the others bring nothing."""
        return self._part(self.meet(b"" if part is None else part.numpy().tobytes())[src])

    def _part(self, data: bytes) -> Any:
        return self.part(memoryview(data)) if data else self._empty(0)
