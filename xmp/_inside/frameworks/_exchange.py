"""Sends any picklable object between replicas: a small head, then large parts as raw bytes.

The head is a pickle in which tensors and large arrays are only described, and has an authentication
code (``_seal``). A small head travels in one collective of fixed size, so that numbers
and short lists cost a single round. The parts follow as plain bytes, each in its own collective:
they are the memory of arrays and tensors and nothing else, so a forged one is a wrong number at
worst. Where the replicas have no common key, the head holds plain values, and no pickle.
"""

from __future__ import annotations

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from xmp._inside import launch_key
from xmp._os.imports import imported

from . import _plain_values
from ._plain_values import array_of, described
from ._seal import Seal

__all__ = ["ArrayWire", "BlockHeads", "Wire", "all_gather", "broadcast"]

_LARGE = 4096
"""An array of at least this many bytes gets its own collective."""


class Wire(Protocol):
    """The protocol by which a framework sends bytes; a *part* is a flat byte array of its type."""

    rank: int
    size: int

    @property
    def seal(self) -> Seal: ...

    @property
    def makers(self) -> tuple[Callable[..., Any], ...]:
        """The functions that ``reduce`` names."""

    def keep(self, value: Any) -> tuple[Any, Any] | None:
        """Return (description, part) of a value that travels outside the pickle; else None."""

    def restore(self, description: Any, part: Any) -> Any:
        """Return the value again, from its description and its part."""

    def reduce(self, value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Return how to pickle a value, as (maker, arguments); None if by its own method."""

    def part(self, buffer: memoryview) -> Any:
        """Return ``buffer`` as a part, which may share its memory."""

    def buffer(self, part: Any) -> Any:
        """Return a part as a writable buffer."""

    def gather_heads(self, head: bytes) -> list[bytes]:
        """Return the heads of all replicas in rank order."""

    def broadcast_head(self, head: bytes | None, src: int) -> bytes:
        """Return the head of rank ``src``; the others pass None."""

    def gather_part(self, part: Any | None, sizes: Sequence[int]) -> list[Any]:
        """Return the parts of all replicas in rank order; ``sizes`` are their bytes."""

    def broadcast_part(self, part: Any | None, size: int, src: int) -> Any:
        """Return the part of rank ``src``, of ``size`` bytes."""


def broadcast(value: Any, src: int, wire: Wire) -> Any:
    """Return the value of rank ``src`` on every replica; ``src`` gets the same object back."""
    if wire.rank == src:
        packed = _pack(value, wire, "broadcast")
        wire.broadcast_head(wire.seal.next("broadcast").closed(src, packed.head), src)
        for part in packed.parts:
            wire.broadcast_part(part, len(part), src)
        return value
    codes = wire.seal.next("broadcast")
    body, notes = _opened(codes.opened(src, wire.broadcast_head(None, src)), wire)
    parts = [wire.broadcast_part(None, size, src) for size in _sizes(notes)]
    return _unpack(body, notes, parts, wire)


def all_gather(value: Any, wire: Wire) -> list[Any]:
    """Return the values of all replicas, in rank order; each is a new object."""
    packed = _pack(value, wire, "all_gather")
    codes = wire.seal.next("all_gather")
    messages = wire.gather_heads(codes.closed(wire.rank, packed.head))
    heads = [_opened(codes.opened(rank, each), wire) for rank, each in enumerate(messages)]
    sizes = [_sizes(notes) for _, notes in heads]
    columns = []
    for index in range(max(map(len, sizes))):
        mine = packed.parts[index] if index < len(packed.parts) else None
        lengths = [each[index] if index < len(each) else 0 for each in sizes]
        columns.append(wire.gather_part(mine, lengths))
    return [
        _unpack(body, notes, [column[rank] for column in columns[: len(sizes[rank])]], wire)
        for rank, (body, notes) in enumerate(heads)
    ]


class _Note(NamedTuple):
    """The instruction to restore a value that the pickle only describes."""

    of_wire: bool
    """Whether the wire restores it; else it is a numpy array."""
    description: Any
    size: int
    """The bytes of its part; -1: it has no part, but ``data``."""
    data: bytes = b""


class _Message(NamedTuple):
    head: bytes
    parts: list[Any]


def _sizes(notes: Sequence[_Note]) -> list[int]:
    """Return the bytes of each part that follows."""
    return [note.size for note in notes if note.size >= 0]


def _pack(value: Any, wire: Wire, operation: str) -> _Message:
    if not wire.seal.key:
        return _packed_plainly(value, wire, operation)
    try:
        body, aside = _dump(pickle.Pickler, value, wire)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Lambdas, local functions and what a notebook cell defines.
        cloudpickle = imported("cloudpickle")
        body, aside = _dump(cloudpickle.Pickler, value, wire)
    notes = [tuple(note) for note in aside.notes]
    return _Message(pickle.dumps((body, notes), protocol=5), aside.parts)


def _packed_plainly(value: Any, wire: Wire, operation: str) -> _Message:
    aside = _Aside(wire, least=0)

    def spell(value: Any) -> Any:
        index = aside.take(value)
        if index is not None:
            return index
        reduced = wire.reduce(value)
        return reduced and (wire.makers.index(reduced[0]), reduced[1])

    try:
        body = _plain_values.encoded(value, spell)
    except _plain_values.NotPlain as error:
        raise TypeError(
            f"xmp.{operation}(): {error} cannot be sent: these replicas have no common secret, so "
            "they open no pickles of each other. Set XMP_JOB_SECRET to one long random text on all "
            "hosts of the job (docs/guide/security.md), or send numbers, text, bytes, None, "
            "arrays, and lists, tuples, dicts and OrderedDicts of them"
        ) from None
    notes = [tuple(note) for note in aside.notes]
    return _Message(_plain_values.encoded((body, notes)), aside.parts)


class _Aside:
    """The arrays and tensors of a value, whose memory travels as it is."""

    def __init__(self, wire: Wire, least: int = _LARGE) -> None:
        """Pickle arrays of fewer bytes than ``least``, as all that is no array."""
        self.notes: list[_Note] = []
        self.parts: list[Any] = []
        self._wire, self._least = wire, least
        self._seen: dict[int, tuple[int, Any]] = {}  # the value too, so that its id is not reused

    def take(self, value: Any) -> int | None:
        """Return the number of the value's note; None for a value that is pickled."""
        if id(value) in self._seen:
            return self._seen[id(value)][0]
        kept = self._wire.keep(value)
        if kept is not None:
            return self._add(value, _Note(True, kept[0], len(kept[1])), kept[1])
        found = described(value)
        if found is None or found[1].nbytes < self._least:
            return None
        description, memory = found
        if memory.nbytes < _LARGE:
            return self._add(value, _Note(False, description, -1, bytes(memory)))
        return self._add(value, _Note(False, description, memory.nbytes), self._wire.part(memory))

    def _add(self, value: Any, note: _Note, part: Any = None) -> int:
        self._seen[id(value)] = len(self.notes), value
        self.notes.append(note)
        if part is not None:
            self.parts.append(part)
        return len(self.notes) - 1


def _dump(base: Any, value: Any, wire: Wire) -> tuple[bytes, _Aside]:
    aside = _Aside(wire)

    class Packer(base):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> int | None:
            return aside.take(value)

        def reducer_override(self, value: Any) -> Any:
            reduced = wire.reduce(value)
            if reduced is not None:
                return reduced
            inherited = getattr(super(), "reducer_override", None)
            return inherited(value) if inherited else NotImplemented

    stream = io.BytesIO()
    Packer(stream, protocol=5).dump(value)
    return stream.getvalue(), aside


def _opened(head: bytes, wire: Wire) -> tuple[bytes, list[_Note]]:
    """Return the body and the notes of a head whose code is right."""
    body, notes = pickle.loads(head) if wire.seal.key else _plain_values.decoded(head)
    return body, [_Note(*note) for note in notes]


def _unpack(body: bytes, notes: Sequence[_Note], parts: Sequence[Any], wire: Wire) -> Any:
    left = iter(parts)
    kept = [_restored(note, None if note.size < 0 else next(left), wire) for note in notes]

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, index: int) -> Any:
            return kept[index]

    def restore(spelled: Any) -> Any:
        if isinstance(spelled, int):
            return kept[spelled]
        maker, arguments = spelled
        return wire.makers[maker](*arguments)

    if wire.seal.key:
        return Unpacker(io.BytesIO(body)).load()
    return _plain_values.decoded(body, restore)


def _restored(note: _Note, part: Any, wire: Wire) -> Any:
    if note.of_wire:
        return wire.restore(note.description, part)
    return array_of(note.description, bytearray(note.data) if part is None else wire.buffer(part))


# --- halves of a Wire that several frameworks share ----------------------------------------------


class ArrayWire:
    """See ``_exchange.Wire``; a part is a flat uint8 numpy array."""

    @cached_property
    def seal(self) -> Seal:
        """The seal, made at the first collective: the key is the replica's, not its parent's."""
        return Seal(launch_key(), "all")

    def keep(self, value: Any) -> tuple[Any, Any] | None:
        """Return None: all arrays are numpy's when they travel."""
        return None

    def restore(self, description: Any, part: Any) -> Any:
        """Fail: this is never called, since nothing was kept."""
        raise AssertionError(description)

    def part(self, buffer: memoryview) -> Any:
        """Return an array over ``buffer``."""
        import numpy

        return numpy.frombuffer(buffer, numpy.uint8)

    def buffer(self, part: Any) -> Any:
        """Return the array's memory, which is writable."""
        return part.data


_INLINE = 504
"""The bytes of a head that fit beside its length in the block that starts every exchange."""


class BlockHeads(ABC):
    """Two methods of ``_exchange.Wire``, for collectives in which all send the same size."""

    def gather_heads(self, head: bytes) -> list[bytes]:
        """Gather heads, in one round when all are short, in two otherwise."""
        blocks = self._gather(_block(head), 8 + _INLINE)
        sizes = [int.from_bytes(block[:8], "little") for block in blocks]
        longest = max(sizes)
        rests = self._gather(head[_INLINE:], longest - _INLINE) if longest > _INLINE else None
        return [
            (block[8:] + (rests[rank] if rests else b""))[: sizes[rank]]
            for rank, block in enumerate(blocks)
        ]

    def broadcast_head(self, head: bytes | None, src: int) -> bytes:
        """Broadcast a head, in one round when it is short, in two otherwise."""
        block = self._broadcast(None if head is None else _block(head), 8 + _INLINE, src)
        size = int.from_bytes(block[:8], "little")
        if size <= _INLINE:
            return block[8 : 8 + size]
        rest = self._broadcast(None if head is None else head[_INLINE:], size - _INLINE, src)
        return block[8:] + rest

    @abstractmethod
    def _gather(self, data: bytes, size: int) -> list[bytes]:
        """Return the bytes of all replicas, padded to this size."""

    @abstractmethod
    def _broadcast(self, data: bytes | None, size: int, src: int) -> bytes:
        """Return the bytes of ``src``, of this size."""


def _block(head: bytes) -> bytes:
    return len(head).to_bytes(8, "little") + head[:_INLINE].ljust(_INLINE, b"\0")
