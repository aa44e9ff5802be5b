"""JAX's two channels between processes: the coordination service, and compiled code.

Short data goes through the coordinator's key-value store: no device, nothing to compile, a few
milliseconds. Arrays go through jitted reductions and gathers over a mesh of all devices, one row
per process; bytes go in blocks of a few sizes, so that little is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from xmp._inside import launch_key
from xmp._words.record import have_not_come

from . import _exchange
from ._exchange import ArrayWire
from ._jax_mesh import Mesh, refuse_global
from ._seal import Seal

__all__ = ["FOREVER", "JaxWire", "coordination_client", "late_ranks"]

FOREVER = 30 * 24 * 3600 * 1000 // 2
"""15 days in milliseconds: the service has 32 bits for a time-out."""
_BLOCK = 1 << 22
_SMALLEST = 1 << 12


def coordination_client() -> Any:
    """Return JAX's connection to its coordinator; None where ``jax.distributed`` is not in use."""
    from jax._src import distributed  # there is no public API; orbax uses this too

    return distributed.global_state.client


def late_ranks(error: str) -> str:
    """Return in words who has not come to a barrier, from the error of its time limit.

    JAX 0.10 writes "Some timed out task names:" and a line for each; a task's name is its rank.
    """
    _, _, names = error.partition("timed out task names:\n")
    late = [int(name) for name in names.partition("\n\n")[0].split() if name.isdecimal()]
    return have_not_come(late) if late else error


class JaxWire(ArrayWire):
    """JAX's wire; see ``_exchange.Wire``."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._call = self._round = 0
        self._stale: list[str] = []
        self._inline = min(32 * 1024, (1 << 20) // size)  # a round's heads fit one gRPC message
        self.makers = _on_device, _key_from
        self.mesh = Mesh(size)

    # --- objects: see _exchange.Wire -----------------------------------------------------------

    def reduce(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Reduce jax arrays to numpy arrays, which the receiver puts on its default device."""
        import jax
        import numpy

        if not isinstance(value, jax.Array):
            return None
        refuse_global(value)
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.extended):
            data = numpy.asarray(jax.random.key_data(value))
            return _key_from, (data, jax.random.key_impl(value))
        return _on_device, (numpy.asarray(value),)

    def gather_heads(self, head: bytes) -> list[bytes]:
        """Gather heads through the key-value store; the rest of a long head in blocks."""
        client = self.client()
        round_ = self._next_round()
        mine = f"{round_}/{self.rank}"
        client.key_value_set_bytes(mine, self._short(head))
        self._meet(client)
        found = client.key_value_dir_get_bytes(f"{round_}/")
        self._stale.append(mine)
        shorts = _in_rank_order(found, self.size)
        sizes = [int.from_bytes(short[:8], "little") for short in shorts]
        if max(sizes) <= self._inline:
            return [short[8:] for short in shorts]
        rests = [max(0, size - self._inline) for size in sizes]
        tails = self.gather_part(self._rest(head), rests)
        return [short[8:] + tail.tobytes() for short, tail in zip(shorts, tails)]

    def broadcast_head(self, head: bytes | None, src: int) -> bytes:
        """Broadcast a head through the key-value store; the rest of a long one in blocks."""
        client = self.client()
        key = f"{self._next_round()}/{src}"
        if self._round % 64 == 0:
            self._meet(client)  # a program that only broadcasts would fill the coordinator
        if head is not None:
            client.key_value_set_bytes(key, self._short(head))
            self._stale.append(key)
            short = self._short(head)
        else:
            short = client.blocking_key_value_get_bytes(key, FOREVER)
        size = int.from_bytes(short[:8], "little")
        if size <= self._inline:
            return bytes(short[8:])
        rest = None if head is None else self._rest(head)
        tail = self.broadcast_part(rest, size - self._inline, src)
        return bytes(short[8:]) + bytes(tail.tobytes())

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        """Gather parts block by block, padded to the length of the longest part."""
        import numpy

        longest = max(sizes)
        columns: list[Any] = [numpy.empty(size, numpy.uint8) for size in sizes]
        for start, block in _blocks(part, longest):
            rows = self.mesh.run("gather", [block])[0]
            for rank, column in enumerate(columns):
                piece = column[start : start + len(block)]
                piece[:] = rows[self._rows[rank]][: len(piece)]
        return columns

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        """Broadcast as a sum, to which the other ranks add zeros."""
        import numpy

        received: Any = numpy.empty(size, numpy.uint8)
        for start, block in _blocks(part, size):
            piece = received[start : start + len(block)]
            piece[:] = self.mesh.run("sum", [block])[0][: len(piece)]
        return received

    @cached_property
    def _rows(self) -> list[int]:
        """The row of each rank: a TPU's runtime numbers the processes itself."""
        import jax

        return _exchange.all_gather(jax.process_index(), self)

    # --- the coordinator -----------------------------------------------------------------------

    def client(self) -> Any:
        """Return JAX's connection to its coordinator.

        Raises RuntimeError if there is none.
        """
        client = coordination_client()
        if client is None:
            raise RuntimeError(
                f"{self.size} processes, but jax.distributed is not initialized here; "
                "call jax.distributed.initialize() first"
            )
        return client

    def begin_call(self, number: int) -> None:
        """Count rounds from 0 again, under the number of a gang's call.

        A rank that alone has broadcast in the last call is a round ahead of the others.
        """
        self._call, self._round = number, 0
        self.seal = Seal(launch_key(), f"all, call {number}")

    def _next_round(self) -> str:
        self._round += 1
        return f"xmp/{self._call}/{self._round}"

    def _meet(self, client: Any) -> None:
        """Wait for all ranks, then delete what this one stored: all have read it by then."""
        client.wait_at_barrier("xmp/round", FOREVER)
        for key in self._stale:
            client.key_value_delete(key)
        self._stale.clear()

    def _short(self, head: bytes) -> bytes:
        return len(head).to_bytes(8, "little") + head[: self._inline]

    def _rest(self, head: bytes) -> Any:
        return self.part(memoryview(head)[self._inline :]) if len(head) > self._inline else None


def _blocks(part: Any | None, size: int) -> Iterator[tuple[int, Any]]:
    """Yield (start, block) of ``part`` padded to ``size``; blocks' lengths are powers of two."""
    import numpy

    for start in range(0, size, _BLOCK):
        length = _SMALLEST
        while length < min(size - start, _BLOCK):
            length *= 2
        block: Any = numpy.zeros(length, numpy.uint8)
        if part is not None:
            piece = part[start : start + length]
            block[: len(piece)] = piece
        yield start, block


def _on_device(array: Any) -> Any:
    import jax

    return jax.device_put(array)


def _key_from(data: Any, implementation: Any) -> Any:
    import jax

    return jax.random.wrap_key_data(data, impl=implementation)


def _in_rank_order(found: Sequence[tuple[str, bytes]], size: int) -> list[bytes]:
    """Return what each rank has stored, by the keys of this round's ranks alone.

    A stranger may add keys, and delete them: RuntimeError if one is missing.
    """
    by_rank = {key.rpartition("/")[2]: value for key, value in found}
    missing = [rank for rank in range(size) if str(rank) not in by_rank]
    if missing:
        raise RuntimeError(
            f"JAX's coordinator has not kept what rank {missing[0]} has stored for a collective: "
            "another program deletes its keys (docs/guide/security.md)"
        )
    return [by_rank[str(rank)] for rank in range(size)]
