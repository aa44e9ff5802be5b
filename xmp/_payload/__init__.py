"""How a function, its arguments and its outcome travel between processes.

One value becomes one *image*: a table, a pickle stream and, behind it, the large buffers (numpy
arrays, tensors) at aligned offsets. An image lies in a memory file and is mapped copy-on-write,
so that any number of processes load it without a copy; small outcomes travel as bytes instead.

Tests: ``tests/messages``.
"""

from __future__ import annotations

import ctypes
import functools
import io
import mmap
import os
import pickle
import struct
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xmp._os import signals
from xmp._os.excepthook import interrupts_kept

from .collector import Collector, HostsCollector, arrived, spawning

__all__ = ["Image", "Packed", "load", "load_image", "loading", "map_file", "pack", "pack_image"]

_ALIGN = 64
_HEAD = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQ")
_INLINE = 32 * 1024
_PIECE = 1 << 30  # write() takes at most 2 GiB - 4 KiB at a time
_loading = False
_mapped: dict[int, weakref.ref[Any]] = {}
"""By address, the weak references to mapped files, which must outlive these. Nothing removes one:
the next file at its address takes its place, and so no thread needs a lock."""


@dataclass
class Image:
    """A packed value: ``data`` when it is small, else ``descriptor`` and ``size`` of a file."""

    data: bytes | None
    size: int
    descriptor: int = -1

    def close(self) -> None:
        """Close the file; mappings of it stay."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass
class Packed:
    """A packed call: its image, and the descriptors that its objects need."""

    image: Image
    descriptors: list[int] = field(default_factory=list)
    touches_device: bool = False
    """Whether loading it initialises a device: only a replica may do so."""
    keep: Any = None
    """The objects themselves, which keep alive the shared memory that the launch needs."""

    def sent(self) -> None:
        """Close the file and the descriptors, of which the receiver has its own; keep the objects.

        Otherwise a pipe's other end would see no end-of-file when its last *user* closes it.
        """
        self.image.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()

    def close(self) -> None:
        """Release everything."""
        self.sent()
        self.keep = None


# --- images ------------------------------------------------------------------------------------


def _lay_out(stream: bytes, buffers: Sequence[memoryview]) -> tuple[bytes, list[int], int]:
    """Return the table, the offset of every part and the total size."""
    parts = [len(stream), *(view.nbytes for view in buffers)]
    position = _HEAD.size + _ENTRY.size * len(parts)
    offsets, table = [], [_HEAD.pack(len(parts))]
    for length in parts:
        align = mmap.PAGESIZE if length >= mmap.PAGESIZE else _ALIGN
        position = -(-position // align) * align
        offsets.append(position)
        table.append(_ENTRY.pack(position, length))
        position += length
    return b"".join(table), offsets, position


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data.nbytes:
        written = os.pwrite(descriptor, data[:_PIECE], offset)
        data, offset = data[written:], offset + written


def build_image(
    stream: bytes,
    buffers: Sequence[memoryview],
    new_file: Callable[[str], int],
    inline: bool,
) -> Image:
    """Lay stream and buffers out: as bytes if ``inline`` and they are small, else in a file."""
    table, offsets, size = _lay_out(stream, buffers)
    parts = [memoryview(stream), *buffers]
    if inline and size <= _INLINE:
        image = bytearray(size)
        image[: len(table)] = table
        for offset, part in zip(offsets, parts, strict=True):
            image[offset : offset + part.nbytes] = part
        return Image(bytes(image), size)
    descriptor = new_file("xmp-image")
    try:
        os.ftruncate(descriptor, size)
        _write(descriptor, memoryview(table), 0)
        for offset, part in zip(offsets, parts, strict=True):
            _write(descriptor, part, offset)
    except BaseException:
        os.close(descriptor)
        raise
    return Image(None, size, descriptor)


def map_file(descriptor: int, size: int) -> memoryview:
    """Map a file copy-on-write for as long as an object refers to it.

    Not the mmap module: before Python 3.13 it keeps a duplicate of the descriptor open. To unmap a
    large result takes milliseconds. No Python code runs for it: what a signal handler raised there
    would be lost, as in any callback of a weak reference.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    # The last one is the weak reference, with which it is called; the C function ignores it.
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.py_object]
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, size, protection, mmap.MAP_PRIVATE, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {size} bytes: {os.strerror(code)}")
    block = (ctypes.c_ubyte * size).from_address(address)
    _mapped[address] = weakref.ref(block, functools.partial(libc.munmap, address, size))
    return memoryview(block)


def load_image(image: Image) -> Any:
    """Return the value of an image; large buffers lie in the mapped file, writable and private."""
    if image.data is not None:
        whole = memoryview(bytearray(image.data))
    else:
        whole = map_file(image.descriptor, image.size)
    (count,) = _HEAD.unpack_from(whole, 0)
    parts = []
    for index in range(count):
        offset, length = _ENTRY.unpack_from(whole, _HEAD.size + index * _ENTRY.size)
        parts.append(whole[offset : offset + length])
    return pickle.loads(parts[0], buffers=parts[1:])


# --- outcomes ----------------------------------------------------------------------------------


def pack_image(value: Any, new_file: Callable[[str], int], inline: bool = True) -> Image:
    """Pack a value that leaves a replica: nothing in it refers to a device or to shared memory.

    ``jax.Array`` leaves as ``numpy.ndarray``, tensors of any device as private CPU tensors.
    """
    from .pickler import OutcomePickler

    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = OutcomePickler(stream, buffers)
    pickler.dump(value)
    return build_image(stream.getvalue(), [b.raw() for b in buffers], new_file, inline)


# --- calls -------------------------------------------------------------------------------------

_lock = threading.RLock()  # a signal handler of the program may itself launch


def pack(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    new_file: Callable[[str], int],
    for_hosts: bool = False,
) -> Packed:
    """Pack a call once, for any number of replicas.

    CPU tensors reached through ``args`` and ``kwargs`` become shared memory, as under
    torch.multiprocessing; those that only ``fn`` refers to are private copies. With ``for_hosts``
    the image contains all that it needs, without descriptors, and the arguments' tensors become
    shared memory where it is loaded. Raises TypeError, which names the argument that cannot be
    sent.
    """
    from .pickler import CallPickler, HostsCallPickler, Rest, by_value_modules, rewriting

    stream, collector = io.BytesIO(), HostsCollector() if for_hosts else Collector()
    buffers: list[pickle.PickleBuffer] = []
    pickler = (HostsCallPickler if for_hosts else CallPickler)(stream, buffers)
    try:
        with (
            _lock,
            by_value_modules(fn),
            spawning(collector),
            interrupts_kept(),
            signals.as_usual(insists=True),
        ):
            pickler.dump((*rewriting(fn), fn, Rest(), tuple(args), dict(kwargs)))
        views = [buffer.raw() for buffer in buffers]
        image = build_image(stream.getvalue(), views, new_file, inline=True)
    except BaseException as error:
        collector.close()
        ours = not isinstance(error, Exception) or isinstance(error, (OSError, MemoryError))
        if ours or signals.from_handler(error):
            raise
        from .culprit import of_call, users_part

        text, reason = of_call(fn, args, kwargs, for_hosts) or (
            f"the call cannot be sent: {error}",
            error,
        )
        raise TypeError(text) from users_part(reason)
    keep = (fn, args, kwargs)
    return Packed(image, collector.descriptors, pickler.touches_device, keep)


def load(image: Image, descriptors: Sequence[int]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Load a call: return the function and its arguments; take over the descriptors."""
    global _loading
    arrived[:] = descriptors
    _loading = True
    try:
        *_, fn, _, args, kwargs = load_image(image)
    finally:
        arrived.clear()
        _loading = False
    return fn, args, kwargs


def loading() -> bool:
    """Return whether this process is loading a call, and with it the modules of its function."""
    return _loading
