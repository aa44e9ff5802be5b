"""torch.distributed in a replica: rendezvous, device and functional collectives.

``enter`` takes microseconds where torch is not needed yet. It imports torch only where a device
must be current, or a process group ready, before the user's function runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from xmp._replica_info import ReplicaInfo

from . import _exchange, _trees
from ._reduce import fold, is_array, is_number
from ._torch_rendezvous import Rendezvous
from ._torch_wire import TorchWire, without_jax

__all__ = [
    "TorchDist",
    "attach",
    "enter",
    "group_is_there",
    "planned_rendezvous",
    "prepare",
    "ready",
    "torch_module",
]

T = TypeVar("T", bound="TorchDist")

_REDUCED = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int32", "int64")
_OPS = {"sum": "SUM", "mean": "SUM", "min": "MIN", "max": "MAX", "prod": "PRODUCT"}


def enter(info: ReplicaInfo) -> TorchDist:
    """Prepare this process for ``info``: rendezvous, current device, process group if planned.

    The planned address is that of MASTER_ADDR and MASTER_PORT now.

    Raises:
        RuntimeError: torch is needed before the function starts and is not installed.
    """
    return prepare()(info)


def prepare() -> Callable[[ReplicaInfo], TorchDist]:
    """Do what is the same for all forks of this process; returns ``enter`` for each of them."""
    return partial(_enter, _installed_rendezvous(), group_is_there())


def _enter(rendezvous: Rendezvous | None, found_a_group: bool, info: ReplicaInfo) -> TorchDist:
    if rendezvous is not None:
        rendezvous.take(info.descriptors.get("store"))
    framework = TorchDist(info, rendezvous, found_a_group)
    if "jax_platforms" in info.settings and "jax" in sys.modules:
        # JAX read its variable when it was imported, perhaps in the template.
        sys.modules["jax"].config.update("jax_platforms", info.settings["jax_platforms"])
    return ready(framework, info, framework.choose_device)


def ready(framework: T, info: ReplicaInfo, *steps: Callable[[], None]) -> T:
    """Run ``steps``, then form the process group if one is planned."""
    try:
        for step in steps:
            step()
        if info.settings.get("backend"):
            framework.init_process_group()
    except BaseException:
        framework.leave()  # this may be the launcher, which goes on
        raise
    return framework


def attach(info: ReplicaInfo) -> TorchDist:
    """The same collectives in a process that another launcher started; changes nothing."""
    return TorchDist(info, None)


def planned_rendezvous(info: ReplicaInfo) -> Rendezvous | None:
    """The installed rendezvous of MASTER_ADDR and MASTER_PORT; None where these are not set."""
    rendezvous = _installed_rendezvous()
    if rendezvous is not None:
        rendezvous.take(info.descriptors.get("store"))
    return rendezvous


def _installed_rendezvous() -> Rendezvous | None:
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port:
        return None
    rendezvous = Rendezvous(address, int(port))
    rendezvous.install()
    return rendezvous


def group_is_there() -> bool:
    """Whether this process has a process group already, which xmp must not destroy then."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_initialized())


def torch_module() -> Any:
    """torch, imported when it is first needed.

    Raises:
        RuntimeError: it is not installed, or built without torch.distributed.
    """
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise RuntimeError(
            f"the replica needs torch, which cannot be imported ({error}); "
            'install it (pip install "xmp-spawn[torch]") or use runtime="jax"'
        ) from error
    if not torch.distributed.is_available():
        raise RuntimeError(
            "this build of torch has no torch.distributed; install a build that has it"
        )
    return torch


class TorchDist:
    """A replica's view of its process group; see ``xmp._types.Framework``.

    Tensors come back on the same device, detached from autograd's graph; numpy and jax arrays come
    back as numpy arrays.
    """

    def __init__(
        self, info: ReplicaInfo, rendezvous: Rendezvous | None, found_a_group: bool = False
    ) -> None:
        self._info = info
        self._rendezvous = rendezvous
        self.device_type = info.settings.get("device_type", "")
        self._found_a_group = found_a_group

    def choose_device(self) -> None:
        """Make this replica's device the current one, unless it is the CPU."""
        if self.device_type not in ("", "cpu"):
            torch_module().get_device_module(self.device_type).set_device(self._info.local_rank)

    def device(self) -> Any:
        """``torch.device("cuda", local_rank)``, with the device type of this launch."""
        torch = torch_module()
        kind = self.device_type or ("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(kind) if kind == "cpu" else torch.device(kind, self._info.local_rank)

    def init_process_group(self, timeout: float | None = None) -> None:
        """Form the process group by env://, with the plan's backend; does nothing if there is one.

        A world of one without an address gets a store within the process.
        """
        dist = torch_module().distributed
        if dist.is_initialized():
            return
        settings = self._info.settings
        backend = settings.get("backend") or settings.get("default_backend") or "auto"
        rank, size = self._place_in_group()
        options: dict[str, Any] = {"rank": rank, "world_size": size}
        if timeout is not None:
            options["timeout"] = timedelta(seconds=timeout)
        if "nccl" in backend:
            options["device_id"] = self.device()  # nccl's barrier would guess it
        if self._info.world_size == 1 and not os.environ.get("MASTER_PORT"):
            options["store"] = dist.HashStore()
        else:
            options["init_method"] = "env://"
        dist.init_process_group(None if backend == "auto" else backend, **options)

    def barrier(self) -> None:
        """Wait until every replica has called this."""
        self._group().barrier()

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce tensors, arrays and numbers in ``value``; shapes must be equal on all replicas."""
        self._group()
        wire = self._wire()
        leaves = [without_jax(leaf) for leaf in _trees.leaves(value)]
        direct = {i: self._start(leaf, op, wire) for i, leaf in enumerate(leaves) if _fits(leaf)}
        rest = [i for i, leaf in enumerate(leaves) if i not in direct and _is_numeric(leaf)]
        if rest:
            gathered = _exchange.all_gather([leaves[i] for i in rest], wire)
            for i, column in zip(rest, zip(*gathered)):
                leaves[i] = fold(column, op)
        for i, (work, buffer) in direct.items():
            work.wait()
            leaves[i] = _finish(buffer, leaves[i], op, wire.size)
        return _trees.rebuild(value, leaves)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Return the value of rank ``src``, any picklable object; ``src`` gets the same object."""
        self._group()
        return _exchange.broadcast(value, src, self._wire())

    def all_gather(self, value: Any) -> Sequence[Any]:
        """Return the values of all replicas, in rank order; shapes may differ."""
        self._group()
        return _exchange.all_gather(value, self._wire())

    def leave(self) -> None:
        """Destroy the process group, restore torch's rendezvous."""
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_initialized() and not self._found_a_group:
            dist.destroy_process_group()
        if self._rendezvous is not None:
            self._rendezvous.remove()

    def _place_in_group(self) -> tuple[int, int]:
        """Rank in, and size of, the process group."""
        return self._info.rank, self._info.world_size

    def _group(self) -> Any:
        self.init_process_group()
        return torch_module().distributed

    def _wire(self) -> TorchWire:
        return TorchWire(torch_module(), self.device)

    def _start(self, leaf: Any, op: str, wire: TorchWire) -> tuple[Any, Any]:
        """Start a reduction in a copy of ``leaf``; returns (work, buffer)."""
        torch = torch_module()
        if is_array(leaf):
            leaf = torch.from_numpy(leaf.copy())
            buffer = leaf.to(wire.device_for(leaf))
        else:
            buffer = leaf.detach().to(wire.device_for(leaf), copy=True).contiguous()
        if op == "mean" and buffer.dtype in (torch.float16, torch.bfloat16):
            buffer = buffer.float()  # a sum of halves overflows where their mean does not
        return self._reduce(buffer, op), buffer

    def _reduce(self, buffer: Any, op: str) -> Any:
        """Start to reduce ``buffer`` in place; ``wait()`` of the result returns when it is done."""
        dist = torch_module().distributed
        return dist.all_reduce(buffer, getattr(dist.ReduceOp, _OPS[op]), async_op=True)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch_module().Tensor)


def _is_numeric(leaf: Any) -> bool:
    return is_number(leaf) or is_array(leaf) or _is_tensor(leaf)


def _fits(leaf: Any) -> bool:
    """Whether gloo and nccl reduce this type themselves."""
    if is_array(leaf):
        return leaf.dtype.isnative and leaf.dtype.kind != "V" and leaf.dtype.name in _REDUCED
    return _is_tensor(leaf) and str(leaf.dtype).removeprefix("torch.") in _REDUCED


def _finish(buffer: Any, leaf: Any, op: str, size: int) -> Any:
    """The reduced buffer in the form of ``leaf``; the mean of integers is a float."""
    if is_array(leaf):
        reduced = buffer.cpu().numpy()
        if op != "mean":
            return reduced
        kind = leaf.dtype if leaf.dtype.kind == "f" else "float64"
        # A division makes a scalar of an array without dimensions.
        return (reduced / size).astype(kind, copy=False).reshape(leaf.shape)
    if op == "mean":
        buffer = buffer / size
        buffer = buffer.to(leaf.dtype) if leaf.is_floating_point() else buffer
    return buffer.to(leaf.device)
