"""Heads in blocks of one size: a short head costs one collective, a longer one two."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["BlockHeads"]

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
