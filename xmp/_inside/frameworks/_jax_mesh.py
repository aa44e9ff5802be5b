"""Compiled collectives over a mesh of all devices, one row for each process.

The value of each process becomes one row of a global array; a jitted function reduces the rows, or
gives all of them to every process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

__all__ = ["Mesh", "refuse_global"]

_WIDE = ("int64", "uint64", "float64", "complex128")
_REDUCED = (
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", *_WIDE),
    *("float16", "bfloat16", "float32", "complex64"),
)


class Mesh:
    """All devices of ``size`` processes; they are initialised at the first use."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._compiled: dict[str, Callable[..., Any]] = {}

    def reduces(self, leaf: Any, op: str) -> bool:
        """Return whether compiled code can reduce this array: XLA's collectives know its type."""
        import jax
        import numpy

        if not isinstance(leaf, (numpy.ndarray, jax.Array)) or leaf.size == 0:
            return False
        name = str(leaf.dtype)
        if isinstance(leaf, jax.Array):
            refuse_global(leaf)
        elif not leaf.dtype.isnative or (name in _WIDE and jax.default_backend() == "tpu"):
            return False
        return name in _REDUCED and not (leaf.dtype.kind == "c" and op in ("min", "max"))

    def reduce(self, arrays: Sequence[Any], op: str) -> list[Any]:
        """Reduce numpy arrays with all their 64 bits, jax arrays as ``jax_enable_x64`` says."""
        import jax
        import numpy

        from_numpy = [i for i, array in enumerate(arrays) if isinstance(array, numpy.ndarray)]
        from_jax = [i for i, array in enumerate(arrays) if isinstance(array, jax.Array)]
        results = dict(zip(from_numpy, self.run(op, [arrays[i] for i in from_numpy])))
        if from_jax:
            spread = [self._spread(arrays[i]) for i in from_jax]
            reduced = self._function(op)(spread)
            results.update((i, out.addressable_data(0)) for i, out in zip(from_jax, reduced))
        return [results[i] for i in range(len(arrays))]

    def run(self, op: str, arrays: Sequence[Any]) -> list[Any]:
        """Run ``op`` on numpy arrays; return new and writable numpy arrays."""
        import numpy

        if not arrays:
            return []
        with _wide():
            results = self._function(op)([self._spread(array) for array in arrays])
            return [numpy.array(result.addressable_data(0)) for result in results]

    def _spread(self, array: Any) -> Any:
        """Return a global array with one row per process, of which ``array`` is this one's."""
        import jax
        import numpy

        if not (isinstance(array, jax.Array) and jax.default_backend() != "cpu"):
            array = numpy.asarray(array)
        row = array[None]
        pieces = [jax.device_put(row, device) for device in jax.local_devices()]
        sharding = jax.sharding.NamedSharding(self._devices, jax.sharding.PartitionSpec("process"))
        shape = (self._size, *array.shape)
        return jax.make_array_from_single_device_arrays(shape, sharding, pieces)

    def _function(self, op: str) -> Callable[..., Any]:
        import jax

        if op not in self._compiled:
            everywhere = jax.sharding.NamedSharding(self._devices, jax.sharding.PartitionSpec())
            self._compiled[op] = jax.jit(partial(_each, op), out_shardings=everywhere)
        return self._compiled[op]

    @cached_property
    def _devices(self) -> Any:
        import jax
        import numpy

        if jax.process_count() != self._size:
            raise RuntimeError(
                f"JAX knows {jax.process_count()} process(es), this launch has {self._size}; "
                "call jax.distributed.initialize() before the first use of a device"
            )
        devices = numpy.array(jax.devices()).reshape(self._size, -1)
        return jax.sharding.Mesh(devices, ("process", "device"))


def _each(op: str, arrays: Sequence[Any]) -> list[Any]:
    return [_along(op, array) for array in arrays]


def _along(op: str, rows: Any) -> Any:
    """Reduce the rows of one global array (traced); the mean of integers is a float."""
    from jax import numpy as jnp

    if op == "gather":
        return rows
    if op in ("min", "max"):
        return getattr(jnp, op)(rows, axis=0)
    truth = rows.dtype == bool
    if op in ("sum", "prod"):
        return getattr(jnp, op)(rows, axis=0, dtype=None if truth else rows.dtype)
    if not jnp.issubdtype(rows.dtype, jnp.inexact):
        return jnp.sum(rows, axis=0) / rows.shape[0]
    half = rows.dtype in (jnp.float16, jnp.bfloat16)  # their sum overflows, their mean does not
    total = jnp.sum(rows, axis=0, dtype=jnp.float32 if half else rows.dtype)
    return (total / rows.shape[0]).astype(rows.dtype)


def _wide() -> AbstractContextManager[Any]:
    """Allow 64-bit types in what is traced within, in this thread only."""
    import jax

    if hasattr(jax, "enable_x64"):
        context: AbstractContextManager[Any] = jax.enable_x64(True)
    else:  # before 0.8
        from jax.experimental import enable_x64

        context = enable_x64()
    return context


def refuse_global(array: Any) -> None:
    if not array.is_fully_addressable:
        raise ValueError(
            f"a jax.Array of shape {array.shape} is spread over several replicas already; "
            "compute on it within jax.jit, or pass array.addressable_data(0)"
        )
