"""JAX in a replica: the processes are connected before the user's function runs.

``enter`` connects them through JAX's coordination service. The devices are initialised at the first
use, as in any JAX program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from xmp._os.imports import imported, loaded_framework, on_import, why_missing
from xmp._words.replica_info import ReplicaInfo

from . import _exchange, _trees
from ._jax_wire import FOREVER, JaxWire, coordination_client, late_ranks
from ._jax_world import JaxWorld
from ._reduce import fold, is_array, is_number
from ._torch_groups import refuse_backend
from ._torch_rendezvous import Rendezvous
from .torch_dist import planned_rendezvous

__all__ = ["Jax", "attach", "enter"]


def enter(info: ReplicaInfo) -> Jax:
    """Set platform and device count, and join ``jax.distributed`` if there are several replicas.

    With ``settings["late"]`` that waits for the first import of JAX.

    Raises:
        RuntimeError: JAX is not installed, or this process has already initialised its devices.
    """
    if info.settings.get("late") and "jax" not in sys.modules:
        return _Late(info)
    jax = jax_module()
    from jax._src import xla_bridge

    if not xla_bridge.backends_are_initialized():  # a launcher that runs fn itself may have
        _configure(jax, info.settings)
    world = _joined(info)
    # A program with torch too forms its process group by env://, as everywhere.
    return Jax(info, world, planned_rendezvous(info))


def attach(info: ReplicaInfo) -> Jax:
    return Jax(info)


def jax_module() -> Any:
    """Return jax, imported when it is first needed.

    Raises:
        RuntimeError: it is not installed, or hidden by a module of the program's.
    """
    try:
        jax = imported("jax")
        imported("jax._src")
    except ImportError as error:
        missing = why_missing("jax", "jax", error)
        raise RuntimeError(f'the replica needs JAX, {missing} or use runtime="cpu"') from error
    return jax


class Jax:
    """A replica's view of the mesh; see ``xmp._words.framework.Framework``.

    A ``jax.Array`` is reduced to a ``jax.Array`` on the same devices, a numpy array to a numpy
    array of its type (64 bits too, whatever ``jax_enable_x64`` says), a torch tensor to a tensor.
    """

    def __init__(
        self,
        info: ReplicaInfo,
        world: JaxWorld | None = None,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        self._info = info
        self._world = world
        self._rendezvous = rendezvous
        self._wire = JaxWire(info.rank, info.world_size)

    def begin_call(self, number: int) -> None:
        """Begin a call of a gang."""
        self._wire.begin_call(number)

    def device(self) -> Any:
        """Return the first of ``jax.local_devices()``; this initialises the devices."""
        return jax_module().local_devices()[0]

    def synchronize(self) -> None:
        """Wait until this process's devices have finished the work that they were given.

        A device works in order, and ``effects_barrier`` waits only for prints and callbacks
        (JAX 0.10): so this waits for the result of one more computation, which comes last.
        """
        jax = jax_module()
        from jax._src import xla_bridge

        if not xla_bridge.backends_are_initialized():
            return
        jax.effects_barrier()
        for device in jax.local_devices():
            (jax.device_put(0.0, device) + 0).block_until_ready()

    def init_process_group(self, backend: str | None = None, timeout: float | None = None) -> None:
        """Do nothing: ``enter`` has connected the processes."""
        refuse_backend(backend, self._info.runtime or "jax")

    def barrier(self) -> None:
        """Wait until every replica has called this, without touching a device."""
        client = coordination_client()
        if client is not None:
            client.wait_at_barrier("xmp/barrier", FOREVER)
        else:
            self.all_gather(None)

    def meet(self, name: str, seconds: float) -> str:
        """Wait until every replica has called this. Return who has not come in time.

        The coordination service decides, and gives those that come late the same answer.
        """
        try:
            self._wire.client().wait_at_barrier(name, max(1, min(int(seconds * 1000), FOREVER)))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return late_ranks(str(error))
        return ""

    def all_reduce(self, value: Any, op: str = "sum") -> Any:
        """Reduce arrays and numbers in ``value``; shapes must be equal on all replicas."""
        leaves = _trees.leaves(value)
        plain = [_as_numpy(leaf) for leaf in leaves]
        direct = [i for i, leaf in enumerate(plain) if self._wire.mesh.reduces(leaf, op)]
        rest = [i for i, leaf in enumerate(plain) if i not in direct and _is_numeric(leaf)]
        results = dict(zip(direct, self._wire.mesh.reduce([plain[i] for i in direct], op)))
        if rest or not direct:  # without a number in it, too: all ranks meet in each call
            gathered = _exchange.all_gather([plain[i] for i in rest], self._wire)
            columns = zip(*gathered, strict=True)
            results.update((i, fold(column, op)) for i, column in zip(rest, columns, strict=True))
        for i, result in results.items():
            leaves[i] = _like(result, leaves[i])
        return _trees.rebuild(value, leaves)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        return _exchange.broadcast(value, src, self._wire)

    def all_gather(self, value: Any) -> Sequence[Any]:
        return _exchange.all_gather(value, self._wire)

    def leave(self) -> None:
        """Leave together, and put JAX's and torch's own functions back."""
        if self._rendezvous is not None:
            self._rendezvous.remove()
        if self._world is not None:
            self._world.leave()

    def linger(self) -> None:
        """Outlive the other replicas, if they depend on this one."""
        if self._world is not None:
            self._world.linger()


class _Late(Jax):
    """For a script that sets a variable which JAX's import reads: it joins when JAX is imported."""

    def __init__(self, info: ReplicaInfo) -> None:
        super().__init__(info, None, planned_rendezvous(info))
        on_import("jax", self._join)

    def leave(self) -> None:
        """Leave together; if this replica has not used JAX, first join the others, who wait."""
        jax_module()
        super().leave()

    def _join(self, jax: Any) -> None:
        jax_module()  # refuses a module of the program's
        _configure(jax, {})  # the import has read the plan's variables, or the script's own
        self._world = _joined(self._info)


def _configure(jax: Any, settings: Any) -> None:
    wanted: dict[str, Any] = {}
    if settings.get("platforms"):
        wanted["jax_platforms"] = settings["platforms"]
    if settings.get("num_cpu_devices"):
        wanted["jax_num_cpu_devices"] = int(settings["num_cpu_devices"])
    if not os.environ.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION"):
        wanted["jax_cpu_collectives_implementation"] = "gloo"
    for name, value in wanted.items():
        if jax.config.values.get(name) != value:
            jax.config.update(name, value)


def _joined(info: ReplicaInfo) -> JaxWorld | None:
    """Return the planned world, joined; a world of one is joined when the program asks for it."""
    coordinator = info.settings.get("coordinator")
    if not coordinator:
        return None
    from jax._src import distributed

    world = JaxWorld(info, coordinator)
    try:
        world.install(distributed)
        if info.world_size > 1:
            world.join()
    except BaseException:
        world.leave()  # this may be the launcher, which goes on
        raise
    return world


def _as_numpy(leaf: Any) -> Any:
    """Return a torch tensor as a numpy array; any other value unchanged."""
    if not _is_tensor(leaf):
        return leaf
    tensor = leaf.detach().cpu()
    return (tensor.float() if _is_bfloat16(leaf) else tensor).numpy()


def _is_tensor(leaf: Any) -> bool:
    torch = loaded_framework("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


def _is_bfloat16(tensor: Any) -> bool:
    return str(tensor.dtype) == "torch.bfloat16"  # numpy has no such type


def _is_numeric(leaf: Any) -> bool:
    return is_number(leaf) or is_array(leaf) or _is_jax_number(leaf)


def _is_jax_number(leaf: Any) -> bool:
    jax = jax_module()
    return isinstance(leaf, jax.Array) and not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended)


def _like(result: Any, leaf: Any) -> Any:
    """Return the result in the form of ``leaf``: a tensor or an array on the leaf's devices."""
    if _is_jax_number(leaf):
        return jax_module().device_put(result, leaf.sharding)
    if _is_tensor(leaf):
        tensor = sys.modules["torch"].from_numpy(result).to(leaf.device)
        return tensor.to(leaf.dtype) if _is_bfloat16(leaf) else tensor
    return result
