"""The random streams of replicas: one of its own for each, or equal ones if the user gives a seed.

A fork inherits its parent's streams. Python reseeds ``random`` by itself; numpy continues with the
parent's state, and so does torch, whose default generator has a seed from the system only in a
fresh process.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import sys
from typing import Any

from xmp._os.imports import loaded_framework, on_import

__all__ = ["OwnStreams", "seed_all", "watch_torch"]

_WORDS = 624
_END = struct.pack("i", _WORDS)
"""The position behind the last word: the next draw replaces all words by new ones."""
_at_import: list[int] = []


def watch_torch() -> None:
    """Note torch's seed at its import in this process, now or later.

    If the seed differs when replicas are forked, the user's own module has set it, for all of them:
    xmp keeps it.
    """
    on_import("torch", _note)


def _note(torch: Any) -> None:
    if hasattr(torch, "initial_seed"):  # a test suite's stand-in may not have it
        _at_import.append(torch.initial_seed())


class OwnStreams:
    """New random streams for each fork of this process: prepared here, begun in the fork.

    A stream that the user's own modules have seeded is left alone if that can be seen (torch).
    """

    def __init__(self) -> None:
        self._numpy = sys.modules.get("numpy.random")
        self._state = _mersenne_state(self._numpy) if self._numpy is not None else 0
        torch = loaded_framework("torch")
        untouched = bool(_at_import) and torch is not None and _at_import == [torch.initial_seed()]
        self._torch = torch.default_generator if torch is not None and untouched else None

    def begin(self) -> None:
        if self._state:
            ctypes.memmove(self._state, os.urandom(4 * _WORDS) + _END, 4 * _WORDS + 4)
        elif self._numpy is not None:
            # Without an argument numpy takes ten times as long to ask the system for the same.
            self._numpy.seed(list(struct.unpack("8I", os.urandom(32))))
        if self._torch is not None:
            self._torch.manual_seed(struct.unpack("q", os.urandom(8))[0])


def _mersenne_state(numpy_random: Any) -> int:
    """Return the address of the words of numpy's global Mersenne Twister; 0 if it is not certain.

    Writing there touches 3 pages of a fork; ``numpy.random.seed`` touches 170. The layout
    (``uint32_t key[624]; int pos``, numpy/random/src/mt19937/mt19937.h) is compared with the result
    of ``get_state``. It is also 0 if a normal number is kept for the next draw: that one would be
    drawn by every fork.
    """
    try:
        kind, key, position, has_gauss, _ = numpy_random.get_state()
        if kind != "MT19937" or has_gauss or len(key) != _WORDS:
            return 0
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        # bitgen_t begins with the pointer to the state (numpy/random/bitgen.h).
        bitgen = pointer(numpy_random.mtrand._rand._bit_generator.capsule, b"BitGenerator")
        state = ctypes.c_void_p.from_address(bitgen).value or 0
        found = ctypes.string_at(state, 4 * _WORDS + 4)
    except Exception:
        return 0
    return state if found == key.tobytes() + struct.pack("i", position) else 0


def seed_all(seed: int) -> None:
    """Seed ``random`` now, and numpy and torch now or when they are imported."""
    random.seed(seed)
    on_import("numpy.random", lambda module: module.seed(seed % 2**32))
    on_import("torch", lambda module: module.manual_seed(seed))
