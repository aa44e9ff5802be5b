"""torch.distributed in a replica: rendezvous, device and functional collectives.

``enter`` takes microseconds where torch is not needed yet. It imports torch only where a device
must be current, or a process group ready, before the user's function runs.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from xmp import _registry
from xmp._os.imports import imported, loaded_framework, why_missing
from xmp._words.framework import Members
from xmp._words.replica_info import ReplicaInfo

from . import _exchange, _trees
from ._jax_apart import JaxApart
from ._reduce import finish, fits, fold, is_array, is_numeric
from ._torch_groups import HostGroups, checked, on_loopback, place_in, planned, refuse_other
from ._torch_meetings import StoreMeetings
from ._torch_rendezvous import Rendezvous
from ._torch_wire import TorchWire, without_jax

__all__ = [
    "TorchDist", "attach", "enter", "group_is_there", "planned_rendezvous", "prepare", "ready",
    "torch_module",
]  # fmt: skip

T = TypeVar("T", bound="TorchDist")

_WORLDS = _registry.every("worlds")
"""Libraries whose state must have the world of the launch; loaded here, in the template."""
_OPS = {"sum": "SUM", "mean": "SUM", "min": "MIN", "max": "MAX", "prod": "PRODUCT"}


def enter(info: ReplicaInfo) -> TorchDist:
    """Prepare this process for ``info``: rendezvous, current device, process group if planned.

    The planned address is that of MASTER_ADDR and MASTER_PORT now.

    Raises:
        RuntimeError: torch is needed before the function starts and is not installed.
    """
    return prepare()(info)


def prepare() -> Callable[[ReplicaInfo], TorchDist]:
    """Do what is the same for all forks of this process; return ``enter`` for each of them."""
    return partial(_enter, _installed_rendezvous(), group_is_there())


def _enter(rendezvous: Rendezvous | None, found_a_group: bool, info: ReplicaInfo) -> TorchDist:
    if rendezvous is not None:
        rendezvous.take(info.descriptors.get("store"))
    framework = TorchDist(info, rendezvous, found_a_group)
    framework.jax = JaxApart(info)
    _correct_ranks(info)
    if "jax_platforms" in info.settings and loaded_framework("jax") is not None:
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
    return TorchDist(info, None, group_is_there())


def planned_rendezvous(info: ReplicaInfo) -> Rendezvous | None:
    """Install and return the rendezvous of MASTER_ADDR and MASTER_PORT; None if they are not set.

    It is for programs that use torch beside another framework; it also fits the state of libraries
    to the launch.
    """
    for world in _WORLDS:
        world(info).install()  # of several replicas, which end without restoring it
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
    """Return whether this process already has a process group, which xmp must then not destroy."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_initialized())


def torch_module() -> Any:
    """Return torch, imported when it is first needed.

    Raises:
        RuntimeError: it is not installed, hidden by a module of the program's, or built without
            torch.distributed.
    """
    try:
        torch = imported("torch")
        imported("torch.distributed")
    except ImportError as error:
        missing = why_missing("torch", "torch", error)
        raise RuntimeError(
            f'the replica needs torch, {missing} or use runtime="jax". xmp.device(), collectives '
            "and process groups need one of the two"
        ) from error
    if not torch.distributed.is_available():
        raise RuntimeError(
            "this build of torch has no torch.distributed; install a build that has it"
        )
    return torch


class TorchDist:
    """A replica's view of its process group; see ``xmp._words.framework``.

    Tensors come back on the same device, detached from autograd's graph; numpy and jax arrays come
    back as numpy arrays.
    """

    def __init__(
        self, info: ReplicaInfo, rendezvous: Rendezvous | None, found_a_group: bool = False
    ) -> None:
        self._info = info
        self._rendezvous = rendezvous
        self.device_type = info.settings.get("device_type", "")
        self._index = int(info.settings.get("device_index", info.local_rank))
        self._found_a_group = found_a_group
        self.jax: JaxApart | None = None
        self._groups = HostGroups(info)
        self._meetings = StoreMeetings()
        self._worlds = [world(info) for world in _WORLDS]
        self._within: Any = None  # a process group; None for the default one
        self.group_name = ""  # of that group; empty for the default one
        self.rank, self.ranks = info.rank, tuple(range(info.world_size))

    def choose_device(self) -> None:
        """Make this replica's device the current one; on the CPU, that of accelerate.

        Raises:
            RuntimeError: a library has a state of another world already.
        """
        for world in self._worlds:
            world.install()
        if self.device_type not in ("", "cpu"):
            torch_module().get_device_module(self.device_type).set_device(self._index)

    def device(self) -> Any:
        """Return ``torch.device("cuda", local_rank)``, with the device type of this launch."""
        torch = torch_module()
        kind = self.device_type or ("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(kind) if kind == "cpu" else torch.device(kind, self._index)

    def synchronize(self) -> None:
        """Wait until this replica's device has finished all that it was given."""
        if self.device_type not in ("", "cpu"):
            torch_module().get_device_module(self.device_type).synchronize()

    def init_process_group(self, backend: str | None = None, timeout: float | None = None) -> None:
        """Form the process group by env://, with the plan's backend unless one is named.

        Do nothing if there is one already. A world of one that no launch of xmp made gets a store
        within the process, whatever MASTER_PORT says.

        Raises:
            ValueError: torch does not have the backend, or the group has another one.
        """
        dist = torch_module().distributed
        if self._groups.broken and dist.is_initialized():
            dist.destroy_process_group()
        self._groups.broken = ""
        if dist.is_initialized():
            refuse_other(dist, backend, self.device)
            return
        chosen = checked(dist, backend) or planned(self._info)
        rank, size = self._place_in_group()
        options: dict[str, Any] = {"rank": rank, "world_size": size}
        if timeout is not None:
            options["timeout"] = timedelta(seconds=timeout)
        self._groups.timeout = options.get("timeout")
        if "nccl" in chosen and self.device().type == "cuda":
            options["device_id"] = self.device()  # nccl's barrier would guess it
        if self._info.world_size == 1 and self._rendezvous is None:
            with on_loopback():
                dist.init_process_group(chosen or None, store=dist.HashStore(), **options)
        else:
            dist.init_process_group(chosen or None, init_method="env://", **options)
            self._groups.formed(dist, rank)
            if self._rendezvous is not None:
                self._rendezvous.formed()

    def members(self, group: Any) -> Members | None:
        """Return this replica's view of a process group of torch's.

        Raises:
            TypeError: ``group`` is not a process group.
            ValueError: torch does not know ``group``.
        """
        dist = torch_module().distributed
        view = copy.copy(self)
        view.rank, view.ranks = place_in(dist, group)
        view._within = group
        view.group_name = "" if group is dist.group.WORLD else getattr(group, "group_name", "")
        return view

    def abandon(self, why: str) -> None:
        """Close this replica's connections: the others of its groups fail instead of waiting.

        Collectives refuse to run from here on, until ``init_process_group`` forms a new group.
        """
        with suppress(Exception):  # where torch cannot, the error of the difference is still raised
            self.init_process_group()  # the others may wait for this one there
            self._groups.wait_until_all_have_formed(torch_module().distributed)
            # Looked up in torch 2.9 and 2.13; with gloo, nccl and the backends that have abort().
            torch_module().distributed.distributed_c10d._abort_process_group()
        self._groups.broken = why

    def meet(self, name: str, seconds: float) -> str:
        """Wait until all replicas of this group have called this. Return who has not come in time.

        Raises:
            RuntimeError: there is no default group yet. Forming one can take any time.
        """
        if not group_is_there() and not self._groups.broken:
            raise RuntimeError(
                "timeout= needs the process group of torch's where ranks are on several hosts, or "
                "another launcher has started them: call xmp.init_process_group(timeout=...) before"
            )
        store = self._group().distributed_c10d._get_default_store()
        return self._meetings.meet(store, name, self._info.rank, self.ranks, seconds)

    def local_group(self) -> Any:
        """Return the process group of this host's replicas; all make the first call together."""
        return self._groups.local(self._group(), self.all_gather)

    def barrier(self) -> None:
        self._group().barrier(self._within)

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce tensors, arrays and numbers in ``value``; shapes must be equal on all replicas."""
        self._group()
        wire = self._wire()
        leaves = [without_jax(leaf) for leaf in _trees.leaves(value)]
        direct = {i: self._start(leaf, op, wire) for i, leaf in enumerate(leaves) if fits(leaf)}
        rest = [i for i, leaf in enumerate(leaves) if i not in direct and is_numeric(leaf)]
        if rest or not direct:  # without a number in it, too: all ranks meet in each call
            gathered = _exchange.all_gather([leaves[i] for i in rest], wire)
            for i, column in zip(rest, zip(*gathered, strict=True), strict=True):
                leaves[i] = fold(column, op)
        for i, (work, buffer) in direct.items():
            work.wait()
            leaves[i] = finish(buffer, leaves[i], op, wire.size)
        return _trees.rebuild(value, leaves)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        self._group()
        return _exchange.broadcast(value, src, self._wire())

    def all_gather(self, value: Any) -> Sequence[Any]:
        self._group()
        return _exchange.all_gather(value, self._wire())

    def black_box(self) -> bytes:
        """Return torch's Flight Recorder: the last TORCH_FR_BUFFER_SIZE collectives, as JSON.

        Empty where there is no process group, or a torch without it (2.9). torch 2.13 keeps 2,000
        by default, of gloo too.
        """
        dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
        return bytes(dump()) if dump is not None and group_is_there() else b""

    def leave(self) -> None:
        """Destroy the process group; restore torch's rendezvous and the state of libraries."""
        for world in self._worlds:
            world.remove()
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_initialized() and not self._found_a_group:
            dist.destroy_process_group()
        if self._rendezvous is not None:
            self._rendezvous.remove()
        if self.jax is not None:
            self.jax.leave()

    def _place_in_group(self) -> tuple[int, int]:
        """Return the rank in, and the size of, the process group."""
        return self._info.rank, self._info.world_size

    def _group(self) -> Any:
        if self._groups.broken:
            raise RuntimeError(
                "the process group cannot be used any more; xmp.init_process_group(), on all "
                f"replicas, forms a new one: {self._groups.broken}"
            )
        self.init_process_group()
        return torch_module().distributed

    def _wire(self) -> TorchWire:
        return TorchWire(torch_module(), self.device, self._within)

    def _start(self, leaf: Any, op: str, wire: TorchWire) -> tuple[Any, Any]:
        """Start a reduction in a copy of ``leaf``; return (work, buffer)."""
        torch = torch_module()
        if is_array(leaf):
            leaf = torch.from_numpy(leaf.copy())
            buffer = leaf.to(wire.device_for(leaf))
        else:
            buffer = leaf.detach().to(wire.device_for(leaf), copy=True).contiguous()
        if op == "mean" and buffer.dtype in (torch.float16, torch.bfloat16):
            buffer = buffer.float()  # a sum of halves may overflow although their mean does not
        return self._reduce(buffer, op), buffer

    def _reduce(self, buffer: Any, op: str) -> Any:
        """Start to reduce ``buffer`` in place; ``wait()`` of the result returns when it is done."""
        dist = torch_module().distributed
        kind = getattr(dist.ReduceOp, _OPS[op])
        return dist.all_reduce(buffer, kind, group=self._within, async_op=True)


# --- ranks that libraries took at import ---------------------------------------------------------


_DECORATORS = (
    # Lightning sets it from RANK or LOCAL_RANK at import, and its Trainer and Fabric later
    # (lightning 2.6, fabric/utilities/rank_zero.py).
    ("lightning_utilities.core.rank_zero", "rank_zero_only", "rank"),
    # torchmetrics from LOCAL_RANK (torchmetrics 1.9, utilities/prints.py).
    ("torchmetrics.utilities.prints", "rank_zero_only", "local_rank"),
)
"""A module, its decorator with an attribute ``rank``, and which of our ranks belongs there."""


def _correct_ranks(info: ReplicaInfo) -> None:
    """Give the loaded libraries the rank of this replica; import none.

    A process that imports a library before it is forked has no rank, or its launcher's. The library
    would let every replica do what is meant for rank 0 alone. Those that are imported later read
    it from the environment.
    """
    for name, decorator, rank in _DECORATORS:
        function: Any = getattr(sys.modules.get(name), decorator, None)
        if hasattr(function, "rank"):
            function.rank = getattr(info, rank)
