"""Sends any picklable object between replicas: a small head, then large parts as raw bytes.

The head is a pickle in which tensors and large arrays are only described. A small head travels in
one collective of fixed size, so that numbers and short lists cost a single round. The parts follow
as plain bytes that were never pickled, each in its own collective.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Wire", "all_gather", "broadcast"]

_LARGE = 4096
"""A buffer of at least this many bytes gets its own collective."""


class Wire(Protocol):
    """How a framework sends bytes. A *part* is a flat array of bytes of the framework's type."""

    rank: int
    size: int

    def keep(self, value: Any) -> tuple[Any, Any] | None:
        """(description, part) of a value that travels outside the pickle; None: inside."""

    def restore(self, description: Any, part: Any) -> Any:
        """The value again, from its description and its part."""

    def reduce(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """How to pickle a value that must not be pickled by its own method; None: by its own."""

    def part(self, buffer: memoryview) -> Any:
        """``buffer`` as a part; may share its memory."""

    def buffer(self, part: Any) -> Any:
        """A part as a writable buffer."""

    def gather_heads(self, head: bytes) -> list[bytes]:
        """The heads of all replicas in rank order."""

    def broadcast_head(self, head: bytes | None, src: int) -> bytes:
        """The head of rank ``src``; the others pass None."""

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        """The parts of all replicas, whose bytes are ``sizes``, in rank order."""

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        """The part of rank ``src``, of ``size`` bytes."""


def broadcast(value: Any, src: int, wire: Wire) -> Any:
    """Return the value of rank ``src`` on every replica; ``src`` gets the same object back."""
    if wire.rank == src:
        head, parts = _pack(value, wire)
        wire.broadcast_head(head, src)
        for part, (_, size) in zip(parts, pickle.loads(head)[1], strict=True):
            wire.broadcast_part(part, size, src)
        return value
    body, notes = pickle.loads(wire.broadcast_head(None, src))
    return _unpack(body, notes, [wire.broadcast_part(None, size, src) for _, size in notes], wire)


def all_gather(value: Any, wire: Wire) -> list[Any]:
    """Return the values of all replicas, in rank order; each is a new object."""
    head, mine = _pack(value, wire)
    heads = [pickle.loads(each) for each in wire.gather_heads(head)]
    columns = []
    for index in range(max(len(notes) for _, notes in heads)):
        sizes = [notes[index][1] if index < len(notes) else 0 for _, notes in heads]
        columns.append(wire.gather_part(mine[index] if index < len(mine) else None, sizes))
    return [
        _unpack(body, notes, [column[rank] for column in columns[: len(notes)]], wire)
        for rank, (body, notes) in enumerate(heads)
    ]


def _pack(value: Any, wire: Wire) -> tuple[bytes, list[Any]]:
    """(head, parts); the head is a pickle of (body, ((description or None, bytes), …))."""
    try:
        body, notes, parts = _dump(pickle.Pickler, value, wire)
    except (pickle.PicklingError, AttributeError, TypeError):
        import cloudpickle  # lambdas, local functions and what a notebook cell defines

        body, notes, parts = _dump(cloudpickle.Pickler, value, wire)
    return pickle.dumps((body, notes), protocol=5), parts


def _dump(base: Any, value: Any, wire: Wire) -> tuple[bytes, list[tuple[Any, int]], list[Any]]:
    notes: list[tuple[Any, int]] = []
    parts: list[Any] = []
    seen: dict[int, tuple[int, Any]] = {}  # the value too, so that its id is not reused

    def take(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LARGE:
            return True
        notes.append((None, raw.nbytes))
        parts.append(wire.part(raw))
        return False

    class Packer(base):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> int | None:
            if id(value) in seen:
                return seen[id(value)][0]
            kept = wire.keep(value)
            if kept is None:
                return None
            seen[id(value)] = (len(parts), value)
            notes.append((kept[0], len(kept[1])))
            parts.append(kept[1])
            return len(parts) - 1

        def reducer_override(self, value: Any) -> Any:
            reduced = wire.reduce(value)
            if reduced is not None:
                return reduced
            inherited = getattr(super(), "reducer_override", None)
            return inherited(value) if inherited else NotImplemented

    stream = io.BytesIO()
    Packer(stream, protocol=5, buffer_callback=take).dump(value)
    return stream.getvalue(), notes, parts


def _unpack(body: bytes, notes: Sequence[tuple[Any, int]], parts: Sequence[Any], wire: Wire) -> Any:
    kept = {
        index: wire.restore(description, part)
        for index, ((description, _), part) in enumerate(zip(notes, parts, strict=True))
        if description is not None
    }
    buffers = [
        wire.buffer(part)
        for (description, _), part in zip(notes, parts, strict=True)
        if description is None
    ]

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, index: int) -> Any:
            return kept[index]

    return Unpacker(io.BytesIO(body), buffers=buffers).load()
