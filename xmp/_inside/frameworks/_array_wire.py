"""The half of ``_exchange.Wire`` that all wires share whose bytes travel as flat numpy arrays."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from xmp._inside import launch_key

from ._seal import Seal

__all__ = ["ArrayWire"]


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
