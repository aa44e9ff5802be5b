"""Results and shared values between processes: an image, in a memory file if it is large.

The sender fixes the file's size: a process that maps a file which its owner then truncates dies of
SIGBUS.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from xmp._payload import Image, pack_image
from xmp._processes.system import linux

__all__ = ["packed_outcome", "received_image"]

_PORTION = 1 << 30  # read() gives at most 2 GiB - 4 KiB at a time


def packed_outcome(value: Any) -> Image:
    """Return the image of a value that a replica sends. Raises what pickling the value raises."""
    image = pack_image(value, linux.memory_file)
    if image.data is None:
        linux.seal(image.descriptor)
    return image


def received_image(data: bytes | None, size: int, descriptors: Sequence[int]) -> Image:
    """Return an image that a replica has sent, ready to load; take over its descriptor, if any.

    A file that can still be truncated is copied, not mapped. Raises ValueError if it is shorter
    than ``size``.
    """
    image = Image(data, size, descriptors[0] if descriptors else -1)
    if image.data is None and not _safe_to_map(image):
        try:
            image.data = _copied(image)
        finally:
            image.close()
    return image


def _safe_to_map(image: Image) -> bool:
    return (
        linux.has_fixed_size(image.descriptor) and os.fstat(image.descriptor).st_size >= image.size
    )


def _copied(image: Image) -> bytes:
    data = bytearray()
    while len(data) < image.size:
        piece = os.pread(image.descriptor, min(image.size - len(data), _PORTION), len(data))
        if not piece:
            raise ValueError(f"its file has {len(data)} bytes, not {image.size}")
        data += piece
    return bytes(data)
